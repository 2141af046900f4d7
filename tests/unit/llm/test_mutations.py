"""Requests and answers with damaged fields: a client's error or a provider's, never a defect."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.bodies import FileContent, inline_files
from gateway_core.llm.formats.calls import Format, InvalidAnswer, LlmCall
from gateway_core.llm.formats.exchange import Exchange, plan_exchange
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.sse import ErrorForm, StreamFailed
from tests.fakes.llm_calls import read_body

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
ROUNDS = 500
URL = "data:image/png;base64,AA"
FILE = FileContent("a.pdf", "application/pdf", b"x")
FORM = ErrorForm("m", 502, "server_error", "upstream_error", "UNAVAILABLE")
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
SCHEMA = {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}}
BODIES: dict[Format, dict[str, Any]] = {
    C: {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image_url", "image_url": {"url": URL}},
                    {"type": "file", "file": {"file_id": "f"}},
                    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        "max_tokens": 5,
        "stop": ["a"],
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    R: {
        "model": "m",
        "instructions": "i",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "x"},
                    {"type": "input_image", "image_url": URL, "detail": "low"},
                    {"type": "input_file", "file_id": "f"},
                ],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text"}]},
            {"type": "image_generation_call", "result": "AA"},
            {"type": "computer_call_output", "output": {"type": "computer_screenshot"}},
            {"type": "reasoning", "summary": []},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "schema": {}}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    },
    G: {
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "x"},
                    {"inlineData": {"mimeType": "image/png", "data": "AA"}},
                    {"fileData": {"mimeType": "image/png", "fileUri": "https://x/y"}},
                ],
            },
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
        ],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "generationConfig": {
            "candidateCount": 1,
            "responseMimeType": "application/json",
            "responseSchema": SCHEMA,
            "thinkingConfig": {"thinkingLevel": "LOW"},
            "responseModalities": ["TEXT"],
        },
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "safetySettings": [{"category": "c", "threshold": "OFF"}],
    },
}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"a": 1}}
PIECE = {"role": "assistant", "content": "hi", "reasoning_content": "r", "tool_calls": [CALL]}
RESPONSE: dict[str, Any] = {
    "id": "r",
    "model": "u",
    "status": "completed",
    "error": None,
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}],
    "usage": {"input_tokens": 1, "output_tokens": 1, "output_tokens_details": {}},
}
CANDIDATE = {
    "content": {"parts": [{"text": "x"}, {"functionCall": {"name": "f", "args": {}}}]},
    "finishReason": "STOP",
    "index": 0,
}
ANSWERS: dict[Format, dict[str, Any]] = {
    C: {
        "id": "i",
        "model": "u",
        "choices": [{"index": 0, "message": PIECE, "finish_reason": "stop"}],
        "usage": USAGE,
    },
    R: RESPONSE,
    G: {
        "candidates": [CANDIDATE],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2},
        "modelVersion": "u",
        "promptFeedback": {"blockReason": "SAFETY"},
    },
}
CHUNKS: dict[Format, list[dict[str, Any]]] = {
    C: [
        {
            "id": "i",
            "model": "u",
            "choices": [{"index": 0, "delta": PIECE, "finish_reason": "stop"}],
            "usage": USAGE,
        }
    ],
    R: [
        {"type": "response.created", "sequence_number": 0, "response": RESPONSE},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "x"},
        {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
    ],
    G: [ANSWERS[G]],
}
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 1e300, "", "x", "data:", "http://[", "üü", 10**18),
    *([], {}, [[]], [{}], [None], ["x"], [1], {"a": 1}, {"type": []}, {"type": "function"}),
]
NAMES = ("type", "id", "role", "file_id", "output", "content", "parts", "audio", "thought")


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from list_paths(item, (*path, key))


def damage(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to three fields missing, replaced or added."""
    changed = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        *path, key = rng.choice(list(list_paths(changed)) or [("x",)])
        holder: Any = changed
        for step in path:
            holder = holder[step]
        if rng.random() < 0.2:
            holder.pop(key, None) if isinstance(holder, dict) else holder.pop()
        elif isinstance(holder, dict) and rng.random() < 0.2:
            holder[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return changed


def read(format_: Format, body: dict[str, Any]) -> LlmCall:
    call = read_body(format_, body, len(orjson.dumps(body)), stream=True)
    return inline_files(call, {each.file_id: FILE for each in call.files})


def stream(exchange: Exchange, upstream: Format, rng: random.Random) -> None:
    frames = []
    for _ in range(rng.randint(1, 4)):
        chunk = damage(rng.choice(CHUNKS[upstream]), rng)
        name = b"event: %b\n" % str(chunk.get("type")).encode() if upstream is R else b""
        frames.append(name + b"data: %b\n\n" % orjson.dumps(chunk))
    raw = b"".join(frames) + rng.choice((b"", b"data: [DONE]\n\n"))
    cut = rng.randint(0, len(raw))
    opened = exchange.open_stream()
    try:
        assert isinstance(opened.feed(raw[:cut]) + opened.feed(raw[cut:]), bytes)
        opened.finish()
    except StreamFailed:
        assert opened.fail(FORM)
    assert opened.text_bytes >= 0


@pytest.mark.parametrize("format_", Format)
def test_damaged_requests_and_answers_raise_only_their_own_errors(format_: Format) -> None:
    rng, planned = random.Random(str(format_)), 0
    refusals: list[InvalidRequest] = []
    for _ in range(ROUNDS):
        try:
            call = read(format_, damage(BODIES[format_], rng))
        except InvalidRequest as error:
            refusals.append(error)
            call = read(format_, copy.deepcopy(BODIES[format_]))
        for upstream in {format_, C, G}:
            try:
                exchange = plan_exchange(call, upstream, "u", 1)
            except InvalidRequest as error:
                refusals.append(error)
                continue
            planned += 1
            assert orjson.dumps(exchange.body)
            try:
                document, usage = exchange.complete(orjson.dumps(damage(ANSWERS[upstream], rng)))
            except (InvalidAnswer, ReportedError):
                pass
            else:
                assert orjson.dumps(document)
                assert usage.input >= 0
            stream(exchange, upstream, rng)
    assert planned > ROUNDS
    assert all(error.param for error in refusals)
