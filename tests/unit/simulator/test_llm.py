"""Language models of the simulator, read with the gateway's own streams and by hand."""

import json
from typing import Any

import pytest

from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.google_stream import GoogleStream
from gateway_core.llm.formats.responses_stream import ResponsesStream
from gateway_core.llm.formats.sse import StreamBroken
from gateway_core.llm.formats.streams import LlmStream
from tests.fakes.llm_streams import read_frames, run_stream

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
GENERATE = "/v1beta/models/gemini-x:generateContent"
STREAM = "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"
FUNCTION = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}


def chat(client, prompt="Hello there", **fields):
    messages = fields.pop("messages", [{"role": "user", "content": prompt}])
    return client.post(CHAT, json={"model": "m", "messages": messages, **fields})


def respond(client, prompt="Hello there", **fields):
    return client.post(RESPONSES, json={"model": "m", "input": prompt, **fields})


def generate(client, prompt="Hello there", path=GENERATE, **fields):
    contents = fields.pop("contents", [{"role": "user", "parts": [{"text": prompt}]}])
    return client.post(path, json={"contents": contents, **fields})


def open_stream(name: str, client: Any, prompt: str) -> tuple[LlmStream, bytes]:
    match name:
        case "chat":
            options = {"include_usage": True}
            answer = chat(client, prompt, stream=True, stream_options=options)
            stream: LlmStream = ChatStream("p", include_usage=True)
        case "responses":
            answer = respond(client, prompt, stream=True)
            stream = ResponsesStream("p", 5)
        case _:
            answer = generate(client, prompt, STREAM)
            stream = GoogleStream("p")
    assert answer.headers["content-type"].startswith("text/event-stream")
    return stream, answer.content


FORMATS = ["chat", "responses", "google"]


def test_answers_repeat_the_prompt_and_count_tokens(client):
    answer = chat(client).json()
    assert answer["choices"][0]["message"]["content"] == "You said: Hello there"
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 4
    answer = respond(client).json()
    assert answer["output"][0]["content"][0]["text"] == "You said: Hello there"
    assert answer["usage"]["total_tokens"] == 6
    answer = generate(client).json()
    assert answer["candidates"][0]["content"]["parts"] == [{"text": "You said: Hello there"}]
    assert answer["usageMetadata"]["totalTokenCount"] == 6


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pieces", ["", "[[pieces=7]]"])
def test_streams_have_a_chunk_for_each_word_and_usage(client, name, pieces):
    stream, body = open_stream(name, client, f"[[words=20]] [[cached=1]] {pieces}")
    frames = read_frames(run_stream(stream, [body]))
    assert len(frames) >= 20
    assert (stream.usage.output, stream.usage.cached) == (20, 1)


def test_google_stream_without_sse_is_an_array(client):
    chunks = generate(client, path=STREAM.partition("?")[0]).json()
    assert "".join(c["candidates"][0]["content"]["parts"][0]["text"] for c in chunks) == (
        "You said: Hello there"
    )
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


def test_functions_are_called_where_forced_or_named(client):
    tools = [{"type": "function", "function": FUNCTION}]
    [choice] = chat(client, tools=tools, tool_choice="required").json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"n":7}',
    }
    [item] = respond(client, "The weather?", tools=[{"type": "function", **FUNCTION}]).json()[
        "output"
    ]
    assert (item["type"], item["name"]) == ("function_call", "weather")
    config = {"functionCallingConfig": {"mode": "ANY"}}
    answer = generate(client, tools=[{"functionDeclarations": [FUNCTION]}], toolConfig=config)
    [part] = answer.json()["candidates"][0]["content"]["parts"]
    assert part == {"functionCall": {"name": "weather", "args": {"n": 7}}}
    assert "said" in chat(client, tools=tools).json()["choices"][0]["message"]["content"]


def test_functions_are_not_called_where_the_caller_forbids_it(client):
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"tools": tools, "tool_choice": "none"}
    messages = [{"role": "user", "content": "weather"}]
    assert chat(client, messages=messages, **body).json()["choices"][0]["finish_reason"] == "stop"
    flat = [{"type": "function", **FUNCTION}]
    [item] = respond(client, "weather", tools=flat, tool_choice="none").json()["output"]
    assert item["type"] == "message"
    config = {"functionCallingConfig": {"mode": "NONE"}}
    contents = [{"parts": [{"text": "weather"}]}]
    tools = [{"functionDeclarations": [FUNCTION]}]
    answer = generate(client, contents=contents, tools=tools, toolConfig=config)
    assert "text" in answer.json()["candidates"][0]["content"]["parts"][0]


def test_fields_of_google_may_be_in_snake_case(client):
    contents = [{"parts": [{"text": "weather"}]}]
    tools = [{"function_declarations": [FUNCTION]}]
    [part] = generate(client, contents=contents, tools=tools).json()["candidates"][0]["content"][
        "parts"
    ]
    assert part["functionCall"]["name"] == "weather"
    config = {"response_mime_type": "application/json"}
    answer = generate(client, contents=contents, generation_config=config)
    assert answer.json()["candidates"][0]["content"]["parts"] == [{"text": "{}"}]


def test_answers_have_the_wanted_choices_and_end_at_a_stop(client):
    answer = chat(client, n=2, stop="there").json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"You said: Hello "}
    assert answer["usage"]["completion_tokens"] == 6
    config = {"candidateCount": 2, "stopSequences": ["there"]}
    answer = generate(client, generationConfig=config).json()
    texts = [each["content"]["parts"][0]["text"] for each in answer["candidates"]]
    assert texts == ["You said: Hello "] * 2


def test_function_results_are_repeated(client):
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    tools = [{"type": "function", "function": FUNCTION}]
    [choice] = chat(client, messages=messages, tools=tools).json()["choices"]
    assert choice["message"]["content"] == "The function says: rain"


def test_json_of_the_wanted_schema_is_written(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": FUNCTION["parameters"]}}
    [choice] = chat(client, response_format=wanted).json()["choices"]
    assert json.loads(choice["message"]["content"]) == {"n": 7}


def test_answers_are_cut_at_the_maximum(client):
    answer = chat(client, "[[words=50]]", max_tokens=5).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert respond(client, "[[words=50]]", max_output_tokens=5).json()["status"] == "incomplete"


@pytest.mark.parametrize(
    ("name", "raised"),
    [("error", ReportedError), ("junk", StreamBroken)],
)
@pytest.mark.parametrize("format_", FORMATS)
def test_streams_break_where_markers_say(client, format_, name, raised):
    stream, body = open_stream(format_, client, f"[[words=9]] [[{name}=4]]")
    with pytest.raises(raised) as caught:
        run_stream(stream, [body])
    assert len(read_frames(caught.value.sent)) == 4


@pytest.mark.parametrize("format_", FORMATS)
def test_streams_break_by_rule(client, rules, format_):
    rules({"behaviour": "break_stream", "kind": "error", "frames": 2, "count": 1})
    stream, body = open_stream(format_, client, "[[words=9]]")
    with pytest.raises(ReportedError) as caught:
        run_stream(stream, [body])
    assert len(read_frames(caught.value.sent)) == 2
    stream, body = open_stream(format_, client, "[[words=9]]")
    assert run_stream(stream, [body])


def test_errors_have_the_form_of_their_format(client, rules):
    answer = chat(client, "[[status=503]]")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    answer = generate(client, "[[status=429]]")
    assert (answer.status_code, answer.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    rules({"behaviour": "status", "status": 500, "match": {"on": "generate"}})
    assert generate(client).json()["error"]["code"] == 500


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"model":"m"}', b'{"model":"m","messages":[],"contents":[],"input":[]}']
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES, GENERATE])
def test_requests_without_a_prompt_are_refused(client, path, body):
    assert client.post(path, content=body).status_code == 400


def test_credentials_are_checked(client):
    del client.headers["Authorization"]
    assert chat(client).status_code == 401
    assert generate(client).status_code == 401
    assert client.get("/v1/models").status_code == 401
    assert client.post(GENERATE + "?key=a-token", json={"contents": [{"parts": []}]}).is_success
    client.headers["x-goog-api-key"] = "a-token"
    assert generate(client).status_code == 200
    assert client.get("/v1beta/models").json()["models"][0]["name"] == "models/simulated-large"


def test_history_counts_answers(client):
    chat(client)
    open_stream("google", client, "hi")
    chat(client, "[[status=500]]")
    shown = client.get("/control/history").json()["generations"]
    assert shown == {"calls": 3, "completed": 2, "aborted": 0}
