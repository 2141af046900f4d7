"""Translation between chat, Responses and generateContent, of requests, answers and streams."""

import gc
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import Format, InvalidAnswer, TokenUsage
from gateway_core.llm.formats.client_tools import ClientTools
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.google_from_chat import GoogleFromChat
from gateway_core.llm.formats.responses_from_chat import ResponsesFromChat
from gateway_core.llm.formats.sse import ErrorForm, StreamBroken
from tests.fakes.llm_calls import USER, exchange, translate
from tests.fakes.llm_streams import (
    chat_chunks,
    cut,
    google_chunks,
    read_frames,
    run_stream,
    write_frames,
)

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT = SCHEMA | {"additionalProperties": False}
PNG = "data:image/png;base64,iVBORw=="
FAILURE = ErrorForm("It failed.", 502, "server_error", "upstream_error", "UNAVAILABLE")


def chat_to_google(**body: Any) -> dict[str, Any]:
    return translate(C, G, **body)


def google_to_chat(**body: Any) -> dict[str, Any]:
    return translate(G, C, **body)


def responses_to_chat(**body: Any) -> dict[str, Any]:
    return translate(R, C, **body)


CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Weather here and there?"},
            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        ],
    },
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"A"}'},
                "extra_content": {"google": {"thought_signature": "c2ln"}},
            },
            {
                "id": "call_2",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"B"}'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"sky":"clear"}'},
    {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
]
CONTENTS = [
    {
        "role": "user",
        "parts": [
            {"text": "Weather here and there?"},
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
            {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
        ],
    },
    {
        "role": "model",
        "parts": [
            {"text": "I look."},
            {
                "functionCall": {"name": "weather", "args": {"city": "A"}},
                "thoughtSignature": "c2ln",
            },
            {"functionCall": {"name": "weather", "args": {"city": "B"}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "weather", "response": {"sky": "clear"}}},
            {"functionResponse": {"name": "weather", "response": {"result": "rain"}}},
        ],
    },
]


def test_chat_conversation_becomes_contents() -> None:
    body = chat_to_google(messages=CONVERSATION)
    assert body == {
        "contents": CONTENTS,
        "systemInstruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]},
    }


def test_contents_become_chat_conversation() -> None:
    system = {"role": "user", "parts": [{"text": "Be brief."}, {"text": "Be kind."}]}
    messages = google_to_chat(contents=CONTENTS, systemInstruction=system)["messages"]
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "weather", "arguments": arguments},
        }
        for call_id, arguments in (("call_1", '{"city":"A"}'), ("call_2", '{"city":"B"}'))
    ]
    image = {"type": "image_url", "image_url": {"url": PNG}}
    assert messages == [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {
            "role": "user",
            "content": [CONVERSATION[2]["content"][0], image, CONVERSATION[2]["content"][2]],
        },
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky":"clear"}'},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"result":"rain"}'},
    ]


def test_google_results_find_their_calls_by_id() -> None:
    def make(kind: str, call_id: str, **more: Any) -> dict[str, Any]:
        return {kind: {"name": "f", "id": call_id, **more}}

    contents = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [make("functionCall", "x"), make("functionCall", "y")]},
        {"parts": [make("functionResponse", "y", response={"n": 2})]},
        {"parts": [make("functionResponse", "x", response={"n": 1})]},
    ]
    messages = google_to_chat(contents=contents)["messages"]
    assert [message.get("tool_call_id") for message in messages] == [None, None, "y", "x"]


def test_generation_parameters_are_translated_both_ways() -> None:
    chat = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 50,
        "stop": ["END"],
        "seed": 7,
        "n": 2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    google = {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 50,
        "stopSequences": ["END"],
        "seed": 7,
        "candidateCount": 2,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
    }
    assert chat_to_google(**chat)["generationConfig"] == google
    body = google_to_chat(generationConfig=google)
    assert {name: body[name] for name in chat} == chat
    assert (body["model"], body["store"]) == ("up", False)
    snake = {"generation_config": {"max_output_tokens": 50}}
    assert google_to_chat(**snake)["max_completion_tokens"] == 50


def test_single_stop_and_old_maximum_are_translated() -> None:
    config = chat_to_google(stop="END", max_tokens=9)["generationConfig"]
    assert config == {"stopSequences": ["END"], "maxOutputTokens": 9}


@pytest.mark.parametrize(
    ("wanted", "config"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"responseMimeType": "application/json"}),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            {"responseMimeType": "application/json", "responseSchema": SCHEMA},
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": STRICT}},
            {"responseMimeType": "application/json", "responseJsonSchema": STRICT},
        ),
    ],
)
def test_response_format_is_translated(wanted: dict[str, Any], config: dict[str, Any]) -> None:
    assert chat_to_google(response_format=wanted).get("generationConfig", {}) == config
    back = google_to_chat(generationConfig=config).get("response_format", {"type": "text"})
    if "json_schema" in wanted:
        wanted = wanted | {"json_schema": wanted["json_schema"] | {"name": "answer"}}
    assert back == wanted


def test_google_schemas_become_json_schemas() -> None:
    google = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "nullable": True},
            "tags": {"type": "ARRAY", "items": {"type": "INTEGER"}},
        },
        "propertyOrdering": ["type"],
    }
    declaration = {"name": "f", "description": "d", "parameters": google}
    [tool] = google_to_chat(tools=[{"functionDeclarations": [declaration]}])["tools"]
    assert tool["function"] == {
        "name": "f",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "type": {"type": ["string", "null"]},
                "tags": {"type": "array", "items": {"type": "integer"}},
            },
        },
    }


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("none", {"mode": "NONE"}),
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        (
            {"type": "function", "function": {"name": "f"}},
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
    ],
)
@pytest.mark.parametrize(
    ("schema", "field"), [(SCHEMA, "parameters"), (STRICT, "parametersJsonSchema")]
)
def test_tools_and_tool_choice_are_translated_both_ways(
    choice: Any, config: dict[str, Any], schema: dict[str, Any], field: str
) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name in ("f", "g")
    ]
    body = chat_to_google(tools=tools, tool_choice=choice)
    assert body["tools"] == [
        {"functionDeclarations": [{"name": name, field: schema} for name in ("f", "g")]}
    ]
    assert body["toolConfig"] == {"functionCallingConfig": config}
    back = google_to_chat(tools=body["tools"], toolConfig=body["toolConfig"])
    one = isinstance(choice, dict)
    assert back["tools"] == (tools[:1] if one else tools)
    assert back["tool_choice"] == ("required" if one else choice)


def test_responses_conversation_becomes_chat() -> None:
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "w", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "w", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "clear"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "rain"}],
        },
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "And this?"},
                {"type": "input_image", "image_url": PNG, "detail": "low"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"},
            ],
        },
    ]
    body = responses_to_chat(input=items, instructions="Be brief.")
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "w", "arguments": '{"a":1}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "w", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "clear"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And this?"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
            ],
        },
    ]


def test_responses_parameters_become_those_of_chat() -> None:
    function = {"name": "f", "description": "d", "parameters": STRICT, "strict": True}
    body = responses_to_chat(
        max_output_tokens=50,
        temperature=0.5,
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": STRICT, "strict": True}},
        tools=[{"type": "function", **function}],
        tool_choice={"type": "function", "name": "f"},
        include=["reasoning.encrypted_content"],
        metadata={"a": "b"},
        stream=True,
    )
    assert body == {
        "model": "up",
        "store": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [USER],
        "max_completion_tokens": 50,
        "temperature": 0.5,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": STRICT, "strict": True},
        },
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }


def test_responses_reach_google() -> None:
    body = translate(R, G, instructions="Be brief.", max_output_tokens=5)
    assert body == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "generationConfig": {"maxOutputTokens": 5},
    }


def user(part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


REFUSED: list[tuple[Format, Format, dict[str, Any], str]] = [
    (C, G, {"logit_bias": {"5": 1}}, "logit_bias"),
    (C, G, {"logprobs": True}, "logprobs"),
    (C, G, {"vendor_field": 1}, "vendor_field"),
    (C, G, {"modalities": ["text", "audio"]}, "modalities"),
    (C, G, {"reasoning_effort": "extreme"}, "reasoning_effort"),
    (C, G, {"response_format": {"type": "grammar"}}, "response_format"),
    (C, G, {"response_format": "json_object"}, "response_format"),
    (C, G, {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
    (C, G, {"tools": {}}, "tools"),
    (C, G, {"messages": ["hi"]}, "messages"),
    (C, G, {"messages": [{"role": "critic", "content": "x"}]}, "messages"),
    (C, G, {"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]}, "messages"),
    (
        C,
        G,
        {"messages": user({"type": "image_url", "image_url": {"url": "https://x/y.png"}})},
        "messages",
    ),
    (C, G, {"messages": user({"type": "hologram"})}, "messages"),
    (G, C, {"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig"),
    (G, C, {"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig"),
    (
        G,
        C,
        {"generationConfig": {"responseSchema": {"type": "STRING"}}},
        "generationConfig",
    ),
    (G, C, {"tools": [{"googleSearch": {}}]}, "tools"),
    (C, G, {"web_search_options": {}}, "web_search_options"),
    (G, C, {"safetySettings": [{"category": "X", "threshold": "BLOCK_ALL"}]}, "safetySettings"),
    (G, C, {"contents": [{"parts": [{"executableCode": {"code": "x"}}]}]}, "contents"),
    (
        G,
        C,
        {"contents": [{"parts": [{"inlineData": {"mimeType": "video/mp4", "data": ""}}]}]},
        "contents",
    ),
    (
        G,
        C,
        {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]},
        "contents",
    ),
    (R, C, {"tools": [{"type": "web_search"}]}, "tools"),
    (R, C, {"include": ["message.output_text.logprobs"]}, "include"),
    (R, C, {"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input"),
    (R, C, {"input": [{"type": "computer_call_output", "output": {}}]}, "input"),
    (R, C, {"input": [{"type": "mcp_approval_response", "approve": True}]}, "input"),
    (R, C, {"tools": [{"type": "computer"}]}, "tools"),
    (R, C, {"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input"),
    (R, C, {"text": {"format": {"type": "grammar"}}}, "text"),
    (R, C, {"text": {"format": "json_object"}}, "text"),
    (
        R,
        C,
        {"tool_choice": {"type": "web_search"}, "tools": [{"type": "function", "name": "f"}]},
        "tool_choice",
    ),
    (C, R, {}, "model"),
    (G, R, {}, "model"),
]


@pytest.mark.parametrize(("format_", "upstream", "changes", "param"), REFUSED)
def test_field_without_translation_is_refused_by_name(
    format_: Format, upstream: Format, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate(format_, upstream, **changes)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("format_", "upstream", "changes", "text"),
    [
        (C, G, {"messages": ["hi"]}, "messages[0] must be an object."),
        (
            C,
            G,
            {"messages": [{"role": "critic", "content": "x"}]},
            "messages[0].role must be system, developer, user, assistant or tool.",
        ),
        (
            C,
            G,
            {"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]},
            "messages[0].tool_call_id names no earlier tool call.",
        ),
        (
            G,
            C,
            {"contents": [{"parts": [{"functionResponse": {"name": "f"}}]}]},
            "contents[0].parts[0] answers no earlier function call.",
        ),
        (R, C, {"input": ["hi"]}, "input[0] must be an object."),
        (R, C, {"input": [{"type": "program"}]}, "input has nothing for the model to answer."),
        (R, C, {"tools": [{"type": "function"}]}, "tools[0].name must be a string."),
        (
            R,
            C,
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools[0].name must be a string: in Responses it is beside type, not in function.",
        ),
        (
            C,
            G,
            {"tools": [{"type": "function", "name": "f"}]},
            "tools[0].function.name must be a string.",
        ),
    ],
)
def test_value_that_cannot_be_translated_is_named_by_its_place(
    format_: Format, upstream: Format, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate(format_, upstream, **changes)
    assert caught.value.message == text


def test_fields_that_ask_for_nothing_are_left_out() -> None:
    body = chat_to_google(
        logit_bias={},
        logprobs=False,
        audio=None,
        user="u",
        store=True,
        tools=[],
        tool_choice="none",
    )
    assert body == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    google = google_to_chat(safetySettings=[{"category": "X", "threshold": "OFF"}], tools=[])
    assert google == {"model": "up", "store": False, "messages": [USER]}


CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "up",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "tool_calls": CALLS},
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}
GENERATED = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hi"},
                    {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}},
                    {"functionCall": {"id": "c2", "name": "g", "args": {}}},
                ],
            },
            "index": 0,
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7},
    "modelVersion": "m",
    "responseId": "chatcmpl-1",
}


def test_completion_becomes_generated_answer_and_back() -> None:
    answer, usage = exchange(G, C).complete(orjson.dumps(COMPLETION))
    assert (answer, usage) == (GENERATED, TokenUsage(3, 4))
    answer, usage = exchange(C, G).complete(orjson.dumps(GENERATED))
    details = {
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    choice = COMPLETION["choices"][0]
    message = choice["message"] | {"refusal": None}
    assert usage == TokenUsage(3, 4)
    assert answer == COMPLETION | {
        "created": 5,
        "model": "m",
        "choices": [choice | {"message": message, "logprobs": None}],
        "usage": COMPLETION["usage"] | details,
    }


@pytest.mark.parametrize(
    ("google", "chat", "status"),
    [
        ("STOP", "stop", "completed"),
        ("MAX_TOKENS", "length", "incomplete"),
        ("SAFETY", "content_filter", "incomplete"),
        ("OTHER", "content_filter", "incomplete"),
    ],
)
def test_finish_reasons_are_translated(google: str, chat: str, status: str) -> None:
    candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": google}
    raw = orjson.dumps({"candidates": [candidate]})
    assert exchange(C, G).complete(raw)[0]["choices"][0]["finish_reason"] == chat
    response, _ = exchange(R, G).complete(raw)
    assert (response["status"], response["usage"]) == (status, None)


def test_blocked_prompt_is_a_filtered_choice() -> None:
    raw = orjson.dumps({"promptFeedback": {"blockReason": "SAFETY"}})
    [choice] = exchange(C, G).complete(raw)[0]["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("content_filter", "")


def test_thoughts_are_reasoning_content_both_ways() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "Hi"}]
    raw = orjson.dumps({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    completion, _ = exchange(C, G).complete(raw)
    message = completion["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Hi")
    back, _ = exchange(G, C).complete(orjson.dumps(completion))
    assert back["candidates"][0]["content"]["parts"] == parts


def test_sound_in_an_answer_has_no_place_in_chat() -> None:
    part = {"inlineData": {"mimeType": "audio/L16", "data": ""}}
    raw = orjson.dumps({"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]})
    with pytest.raises(InvalidAnswer):
        exchange(C, G).complete(raw)
    with pytest.raises(StreamBroken):
        exchange(C, G, stream=True).open_stream().feed(b"data: " + raw + b"\n\n")


def chat_call_chunks() -> list[dict[str, Any]]:
    """Text, then two function calls whose pieces alternate."""
    chunks = chat_chunks("Hi")
    start, last, usage = chunks[:2], chunks[-2], chunks[-1]
    last["choices"][0]["finish_reason"] = "tool_calls"

    def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        function = {"arguments": arguments} | more.pop("function", {})
        call = {"index": index, "function": function, **more}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
        return start[0] | {"choices": [choice]}

    return [
        *start,
        piece(0, "", id="c1", type="function", function={"name": "f"}),
        piece(1, "", id="c2", type="function", function={"name": "g"}),
        piece(0, '{"a"'),
        piece(1, "{}"),
        piece(0, ":1}"),
        last,
        usage,
    ]


def test_chat_stream_becomes_google_stream() -> None:
    upstream = write_frames([*chat_call_chunks(), b"[DONE]"])
    stream = exchange(G, C, stream=True).open_stream()
    passed = run_stream(stream, [upstream])
    first, calls, last = read_frames(passed)
    [candidate] = calls["candidates"]
    parts = first["candidates"][0]["content"]["parts"] + candidate["content"]["parts"]
    assert parts == GENERATED["candidates"][0]["content"]["parts"]
    assert last["candidates"][0]["finishReason"] == "STOP"
    assert last["usageMetadata"]["totalTokenCount"] == 14
    assert {chunk["modelVersion"] for chunk in (first, calls, last)} == {"m"}
    assert stream.usage == TokenUsage(9, 5, cached=4)


@pytest.mark.parametrize("include", [True, False])
def test_google_stream_becomes_chat_stream(include: bool) -> None:
    chunks = google_chunks("He", "llo")
    call = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
    chunks[1]["candidates"][0]["content"]["parts"].append(call)
    options = {"stream_options": {"include_usage": True}} if include else {}
    stream = exchange(C, G, stream=True, **options).open_stream()
    *frames, done = read_frames(run_stream(stream, [write_frames(chunks, line_end=b"\r\n")]))
    assert done == "[DONE]"
    assert {frame["id"] for frame in frames} == {"r1"}
    if include:
        usage = frames.pop()
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 11)
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    assert all(("usage" in frame) == include for frame in frames)
    assert deltas[0] == {"role": "assistant", "content": "He"}
    assert deltas[1]["content"] == "llo"
    [made] = deltas[1]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert made["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    assert [frame["choices"][0]["finish_reason"] for frame in frames] == [None, None, "tool_calls"]


def test_chat_stream_becomes_responses_stream() -> None:
    stream = exchange(R, C, stream=True, metadata={"a": "b"}).open_stream()
    events = read_frames(run_stream(stream, [write_frames([*chat_call_chunks(), b"[DONE]"])]))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response = events[-1]["response"]
    assert {event["response"]["id"] for event in events if "response" in event} == {response["id"]}
    assert (response["model"], response["metadata"]) == ("m", {"a": "b"})
    message, *calls = response["output"]
    assert message["content"][0]["text"] == "Hi"
    assert [(call["call_id"], call["arguments"]) for call in calls] == [
        ("c1", '{"a":1}'),
        ("c2", "{}"),
    ]
    added = [event["item"] for event in events if event["type"].endswith("output_item.added")]
    assert [item["id"] for item in added] == [item["id"] for item in response["output"]]
    assert response["usage"]["total_tokens"] == 14


STREAMS = {
    (C, G): write_frames(google_chunks("He", "llo", "日本"), line_end=b"\r\n"),
    (R, G): write_frames(google_chunks("He", "llo", "日本"), line_end=b"\r\n"),
    (G, C): write_frames([*chat_call_chunks(), b"[DONE]"]),
    (R, C): write_frames([*chat_call_chunks(), b"[DONE]"]),
}


def strip_ids(frames: list[Any]) -> list[Any]:
    """Frames without the ids that the gateway draws at random."""
    known = {}
    text = orjson.dumps(frames).decode()
    for word in text.split('"'):
        if word.startswith(("resp_", "msg_", "fc_")):
            known.setdefault(word, f"id-{len(known)}")
            text = text.replace(word, known[word])
    return list(orjson.loads(text))


@pytest.mark.parametrize(("format_", "upstream"), STREAMS)
@given(places=st.lists(st.integers(0, 5000), max_size=40))
@settings(max_examples=30, deadline=None)
def test_pieces_cut_anywhere_give_the_same_translation(
    format_: Format, upstream: Format, places: list[int]
) -> None:
    data = STREAMS[format_, upstream]
    made = exchange(format_, upstream, stream=True)
    whole = read_frames(run_stream(made.open_stream(), [data]))
    parts = read_frames(run_stream(made.open_stream(), cut(data, places)))
    assert strip_ids(parts) == strip_ids(whole)


@pytest.mark.parametrize(("format_", "upstream"), STREAMS)
def test_error_in_translated_stream_keeps_the_frames_before_it(
    format_: Format, upstream: Format
) -> None:
    stream = exchange(format_, upstream, stream=True).open_stream()
    before = STREAMS[format_, upstream].replace(b"\r\n", b"\n").split(b"\n\n")[:2]
    error = b'data: {"error":{"message":"Overloaded","code":503}}'
    with pytest.raises(ReportedError) as caught:
        stream.feed(b"\n\n".join([*before, error, b""]))
    assert b"H" in caught.value.sent
    last, *more = read_frames(stream.fail(FAILURE))
    assert last["error"]["message"] == "It failed."
    if format_ is R:
        assert last["sequence_number"] == len(read_frames(caught.value.sent))
        assert [each["response"]["error"]["message"] for each in more] == ["It failed."]


def measure_growth(run: Callable[[int], object]) -> float:
    """How much longer it takes for four times as many: the least of three, without collections."""

    def measure(count: int) -> float:
        began = time.thread_time()
        run(count)
        return time.thread_time() - began

    gc.disable()
    try:
        least, most = (min(measure(count) for _ in range(3)) for count in (3_000, 12_000))
    finally:
        gc.enable()
    return most / least


def test_time_grows_with_the_number_of_pieces_and_not_with_its_square() -> None:
    def answer_functions(count: int) -> None:
        calls = {"role": "model", "parts": [{"functionCall": {"name": "f"}}] * count}
        results = {"role": "user", "parts": [{"functionResponse": {"name": "f"}}] * count}
        google_to_chat(contents=[calls, results])

    def write(count: int) -> None:
        text = {"choices": [{"delta": {"content": "four"}}]}
        call = {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "four"}}]}}]}
        for stream in (
            ResponsesFromChat({}, "m", 1, ClientTools({}), keeps_field=True),
            GoogleFromChat("m"),
        ):
            for chunk in (text, call):
                for _ in range(count):
                    stream.translate(chunk)
            assert stream.end(None)

    # a square would be 16
    assert measure_growth(answer_functions) < 9
    assert measure_growth(write) < 9
