"""What OpenAI's unmodified SDK for Python does with language models (contract §7, annex C)."""

import json
import time
import urllib.request
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.integration.llm.conftest import NAMED

pytestmark = pytest.mark.full

MODELS = ["sim-chat", "sim-google"]
"""At a provider of each dialect: answers of the second one are translated."""
both = pytest.mark.parametrize("model", MODELS)
HELLO = [{"role": "user", "content": "Hello there, gateway"}]
ANSWER = "You said: Hello there, gateway"


class Weather(BaseModel):
    """A structured answer; the simulated model fills in samples."""

    city: str
    degrees: int
    unit: Literal["celsius", "kelvin"]


class GetWeather(BaseModel):
    """Looks up the weather."""

    city: str


TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": GetWeather.model_json_schema()},
}
RESPONSES_TOOL = {"type": "function", "strict": False, **TOOL["function"]}


def ask(text):
    return [{"role": "user", "content": text}]


@both
def test_raw_response_has_request_id_and_rate_headers(sync_openai, model):
    raw = sync_openai.chat.completions.with_raw_response.create(model=model, messages=HELLO)
    assert raw.headers["x-request-id"].startswith("req_")
    assert int(raw.headers["x-ratelimit-remaining-rpm"]) > 0
    made = raw.parse()
    assert (made.choices[0].message.content, made.model) == (ANSWER, model)
    assert made.choices[0].finish_reason == "stop"
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens


@both
def test_chat_stream_has_its_usage_last_and_only_if_asked(sync_openai, model):
    create = sync_openai.chat.completions.create
    chunks = list(create(model=model, messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert {(chunk.model, chunk.usage) for chunk in chunks} == {(model, None)}
    *chunks, last = create(
        model=model, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks)


@both
def test_stream_helper_collects_text_and_functions(sync_openai, model):
    with sync_openai.chat.completions.stream(model=model, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == ANSWER

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    with sync_openai.chat.completions.stream(
        model=model, messages=ask("Call get_weather"), tools=[tool]
    ) as stream:
        kinds = [event.type for event in stream]
        [call] = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert call.function.parsed_arguments == GetWeather(city="sample")


@both
def test_structured_outputs_are_parsed(sync_openai, model):
    made = sync_openai.chat.completions.parse(model=model, messages=HELLO, response_format=Weather)
    expected = Weather(city="sample", degrees=7, unit="celsius")
    assert made.choices[0].message.parsed == expected
    made = sync_openai.responses.parse(model=model, input="Hello", text_format=Weather)
    assert made.output_parsed == expected


@both
@pytest.mark.parametrize("is_stream", [False, True])
def test_tool_loop_of_responses(sync_openai, model, is_stream):
    given = ask("Call get_weather for me")

    def turn():
        asked = {"model": model, "input": given, "tools": [RESPONSES_TOOL]}
        if not is_stream:
            return sync_openai.responses.create(**asked)
        with sync_openai.responses.stream(**asked) as stream:
            return stream.get_final_response()

    made = turn()
    [call] = [item for item in made.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("get_weather", '{"city":"sample"}')
    given += [item.to_dict(mode="json") for item in made.output]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "9 degrees"})
    assert "9 degrees" in turn().output_text


@both
def test_responses_stream_numbers_its_events_and_ends_with_the_response(sync_openai, model):
    with sync_openai.responses.stream(model=model, input="Hello there, gateway") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    ids = {event.response.id for event in events if hasattr(event, "response")}
    assert ids == {final.id}
    assert final.output_text == ANSWER
    assert final.model == model
    assert final.usage.output_tokens == 5
    whole = sync_openai.responses.create(model=model, input="Hello there, gateway")
    assert whole.output_text == ANSWER


@both
def test_answers_that_are_cut_short_say_so(sync_openai, model):
    with pytest.raises(openai.LengthFinishReasonError):
        sync_openai.chat.completions.parse(
            model=model, messages=ask("[[finish=length]]"), response_format=Weather
        )
    made = sync_openai.chat.completions.create(model=model, messages=HELLO, max_tokens=2)
    assert made.choices[0].finish_reason == "length"
    made = sync_openai.responses.create(model=model, input="[[words=40]]", max_output_tokens=16)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    filtered = ask("[[finish=content_filter]] Hello")
    made = sync_openai.chat.completions.create(model=model, messages=filtered)
    assert made.choices[0].finish_reason == "content_filter"


@both
@pytest.mark.parametrize("fault", ["error", "junk", "drop"])
def test_fault_in_mid_stream_raises_an_api_error_with_a_code(
    sync_openai, spare_openai, spare_google, model, fault
):
    """After the frames that came before it; all of them are whole."""
    model = spare_openai if model == "sim-chat" else spare_google
    prompt = f"[[words=20]] [[pieces=7]] [[{fault}=6]]"
    received = []

    def collect(stream):
        received.clear()
        received.extend(stream)

    chunks = sync_openai.chat.completions.create(model=model, messages=ask(prompt), stream=True)
    with pytest.raises(openai.APIError) as raised:
        collect(chunks)
    assert (type(raised.value), raised.value.code) == (openai.APIError, "upstream_error")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in received)
    assert text.startswith("The quick")

    with (
        sync_openai.chat.completions.stream(model=model, messages=ask(prompt)) as stream,
        pytest.raises(openai.APIError) as raised,
    ):
        stream.until_done()
    assert raised.value.code == "upstream_error"

    events = sync_openai.responses.create(model=model, input=prompt, stream=True)
    with pytest.raises(openai.APIError) as raised:
        collect(events)
    assert raised.value.code == "upstream_error"
    assert [event.sequence_number for event in received] == list(range(len(received)))
    assert received[0].type == "response.created"


STATUSES = [
    (400, openai.BadRequestError, "invalid_request_error", "invalid_value"),
    (401, openai.InternalServerError, "server_error", "upstream_error"),
    (403, openai.InternalServerError, "server_error", "upstream_error"),
    (404, openai.InternalServerError, "server_error", "upstream_error"),
    (422, openai.BadRequestError, "invalid_request_error", "invalid_value"),
    (429, openai.RateLimitError, "rate_limit_error", "upstream_rate_limited"),
    (500, openai.InternalServerError, "server_error", "upstream_error"),
    (503, openai.InternalServerError, "server_error", "service_unavailable"),
]


@pytest.mark.parametrize(("status", "kind", "type_", "code"), STATUSES)
def test_status_of_a_provider_raises_the_class_of_the_translated_one(
    sync_openai, spare_openai, status, kind, type_, code
):
    prompt = f"[[status={status}]]"
    for is_stream in (False, True):
        for create, given in (
            (sync_openai.chat.completions.create, {"messages": ask(prompt)}),
            (sync_openai.responses.create, {"input": prompt}),
        ):
            with pytest.raises(kind) as raised:
                create(model=spare_openai, stream=is_stream, **given)
            assert (raised.value.type, raised.value.code) == (type_, code)
            assert raised.value.request_id.startswith("req_")


@pytest.mark.usefixtures("spare_models")
def test_model_id_with_slash_and_colon_is_found_and_called(sync_openai, sync_genai):
    """OpenAI's SDK encodes the slash in a path, Google's does not."""
    assert sync_openai.models.retrieve(NAMED).id == NAMED
    made = sync_openai.chat.completions.create(model=NAMED, messages=HELLO)
    assert (made.model, made.choices[0].message.content) == (NAMED, ANSWER)
    assert sync_genai.models.get(model=NAMED).name == f"models/{NAMED}"
    assert sync_genai.models.generate_content(model=NAMED, contents="Hi").model_version == NAMED


def test_time_out_of_the_client_ends_the_call_at_the_provider(world, sync_openai, spare_openai):
    impatient = sync_openai.with_options(timeout=0.3)

    def count_aborted():
        url = world.env["GATEWAY_SIMULATOR_URL"] + "/control/history"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["generations"]["aborted"]

    before = count_aborted()
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model=spare_openai, messages=ask("[[first=20]]"))
    with (
        pytest.raises(openai.APITimeoutError),
        impatient.chat.completions.stream(
            model=spare_openai, messages=ask("[[words=9]] [[pause=20]]")
        ) as stream,
    ):
        stream.until_done()
    deadline = time.monotonic() + 30
    while count_aborted() < before + 2:
        assert time.monotonic() < deadline
