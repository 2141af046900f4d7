"""Answers and streams of providers that keep their format loosely, translated."""

import re
from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import Format, InvalidAnswer, TokenUsage
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.sse import StreamBroken
from tests.fakes.llm_calls import exchange
from tests.fakes.llm_streams import (
    chat_chunks,
    google_chunks,
    read_frames,
    responses_events,
    run_stream,
    write_frames,
)

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
ARGUMENTS = f'{{"a":{600 * "["}{600 * "]"}}}'
DEEP = orjson.Fragment(ARGUMENTS)


def write_calls(*pieces: dict[str, Any], reason: str | None = "tool_calls") -> bytes:
    """A chat stream with these pieces of tool calls."""
    start, last, usage = chat_chunks()
    last["choices"][0]["finish_reason"] = reason
    chunks = [
        start | {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces
    ]
    return write_frames([start, *chunks, *([last] if reason else []), usage, b"[DONE]"])


def begin(call_id: str, arguments: str) -> dict[str, Any]:
    return {"index": 0, "id": call_id, "function": {"name": "f", "arguments": arguments}}


def read_google_calls(wire: bytes) -> list[dict[str, Any]]:
    chunks = read_frames(run_stream(exchange(G, C, stream=True).open_stream(), [wire]))
    parts = [part for each in chunks for part in each["candidates"][0]["content"]["parts"]]
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"
    return [part["functionCall"] for part in parts if "functionCall" in part]


def read_responses_calls(wire: bytes) -> list[tuple[str, str]]:
    events = read_frames(run_stream(exchange(R, C, stream=True).open_stream(), [wire]))
    output = events[-1]["response"]["output"]
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == output
    return [(item["call_id"], item["arguments"]) for item in output]


def test_calls_of_one_index_are_told_apart_by_their_ids() -> None:
    wire = write_calls(begin("a", '{"x":1}'), begin("b", '{"x":2}'))
    assert read_google_calls(wire) == [
        {"id": "a", "name": "f", "args": {"x": 1}},
        {"id": "b", "name": "f", "args": {"x": 2}},
    ]
    assert read_responses_calls(wire) == [("a", '{"x":1}'), ("b", '{"x":2}')]


def test_ids_of_single_pieces_begin_no_call() -> None:
    piece = {"index": 0, "id": "other", "function": {"arguments": "1}"}}
    wire = write_calls(begin("a", '{"x":'), piece)
    [call] = read_google_calls(wire)
    assert call["args"] == {"x": 1}
    assert read_responses_calls(wire) == [("a", '{"x":1}')]


def test_calls_of_a_stream_without_finish_reason_are_kept() -> None:
    wire = write_calls(begin("a", "{}"), reason=None)
    assert read_google_calls(wire) == [{"id": "a", "name": "f", "args": {}}]


CUT: dict[str, Any] = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "a",
    "name": "f",
    "arguments": '{"x": "',
    "status": "completed",
}


def test_cut_call_of_a_provider_of_responses_is_incomplete() -> None:
    first, *_, last = responses_events()
    last["response"]["output"] = [dict(CUT)]
    done = {"type": "response.output_item.done", "output_index": 0, "item": dict(CUT)}
    wire = write_frames([first, done, last], named=True)
    sent = exchange(R, R, stream=True)
    _, done, last = read_frames(run_stream(sent.open_stream(), [wire]))
    assert done["item"] == CUT | {"status": "incomplete"}
    assert last["response"]["output"] == [done["item"]]
    answer, _ = sent.complete(orjson.dumps({"id": "r", "output": [CUT, CUT | {"arguments": ""}]}))
    assert [item["status"] for item in answer["output"]] == ["incomplete", "completed"]


@pytest.mark.parametrize("format_", [C, R])
def test_call_of_google_without_a_name_is_none(format_: Format) -> None:
    parts = [{"functionCall": {"args": {}}}, {"functionCall": {"name": "f"}}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    answer, _ = exchange(format_, G).complete(orjson.dumps({"candidates": [candidate]}))
    calls = answer["output"] if format_ is R else answer["choices"][0]["message"]["tool_calls"]
    assert [each.get("name") or each["function"]["name"] for each in calls] == ["f"]


ANSWERS: dict[Format, Any] = {
    C: {
        "choices": [
            {"message": {"tool_calls": [{"function": {"name": "f", "arguments": ARGUMENTS}}]}}
        ]
    },
    R: {"output": [], "x": DEEP},
    G: {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": DEEP}}]}}]},
}


@pytest.mark.parametrize(("format_", "upstream"), [(R, R), (G, G), (C, G), (R, G), (G, C)])
def test_answer_nested_too_deeply_to_encode_is_invalid(format_: Format, upstream: Format) -> None:
    with pytest.raises(InvalidAnswer):
        exchange(format_, upstream).complete(orjson.dumps(ANSWERS[upstream]))


PINGS = [
    b'event: ping\ndata: {"type": "ping"}\n\n',
    b"event: ping\ndata: now\n\n",
    b'data: {"cost": 3}\n\n',
    b"data: null\n\n",
    b"data: []\n\n",
    b'data: "ping"\n\n',
]
WIRES = {
    C: write_frames([*chat_chunks("Go", "od"), b"[DONE]"]),
    R: write_frames(responses_events("Go", "od"), named=True),
    G: write_frames(google_chunks("Go", "od")),
}
PAIRS = [(C, C), (C, G), (R, C), (R, R), (R, G), (G, C), (G, G)]


@pytest.mark.parametrize(("format_", "upstream"), PAIRS)
@pytest.mark.parametrize("ping", PINGS)
def test_frame_that_is_no_chunk_is_skipped(format_: Format, upstream: Format, ping: bytes) -> None:
    wire = WIRES[upstream]

    def run(pieces: bytes) -> list[Any]:
        sent = exchange(format_, upstream, stream=True)
        return mask_ids(read_frames(run_stream(sent.open_stream(), [pieces])))

    first, rest = wire.split(b"\n\n", 1)
    assert run(first + b"\n\n" + ping + rest) == run(wire)
    assert run(ping + wire) == run(wire)


def mask_ids(frames: list[Any]) -> list[Any]:
    """Frames without the ids that the gateway makes at random."""
    text = orjson.dumps(frames).decode()
    return list(orjson.loads(re.sub(r"(resp|msg|chatcmpl)[_-][0-9a-f]{24,}", "id", text)))


def test_error_in_an_array_is_an_error() -> None:
    stream = exchange(G, G, stream=True).open_stream()
    with pytest.raises(ReportedError):
        stream.feed(b'data: [{"error": {"code": 503, "message": "no", "status": "X"}}]\n\n')


@pytest.mark.parametrize(("format_", "upstream"), PAIRS)
@pytest.mark.parametrize("data", [{"message": "Overloaded"}, {}, None])
def test_event_that_is_named_an_error_is_one(format_: Format, upstream: Format, data: Any) -> None:
    stream = exchange(format_, upstream, stream=True).open_stream()
    with pytest.raises(ReportedError, match="Overloaded" if data else "failed"):
        stream.feed(b"event: error\n" + write_frames([data]))


OTHER_TOTALS = {"input_tokens": 9, "output_tokens": 5}
TOTALS = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}


@pytest.mark.parametrize("place", ["usage", "choice", "x_groq", "alone", "event", "flat", "names"])
def test_usage_of_chat_is_read_wherever_it_stands(place: str) -> None:
    *chunks, last = chat_chunks("Hi", usage=False)
    extra = b""
    match place:
        case "usage":
            last["usage"] = TOTALS
        case "choice":
            last["choices"][0]["usage"] = TOTALS
        case "x_groq":
            last["x_groq"] = {"usage": TOTALS}
        case "alone":
            extra = write_frames([{"usage": TOTALS}])
        case "flat":
            extra = b"event: usage\n" + write_frames([TOTALS])
        case "names":
            last["usage"] = OTHER_TOTALS
        case _:
            extra = b"event: usage\n" + write_frames([{"usage": TOTALS}])
    wire = write_frames([*chunks, last]) + extra + write_frames([b"[DONE]"])
    for format_ in (C, R, G):
        options = {"stream_options": {"include_usage": True}} if format_ is C else {}
        stream = exchange(format_, C, stream=True, **options).open_stream()
        frames = read_frames(run_stream(stream, [wire]))
        assert stream.usage == TokenUsage(9, 5)
        if format_ is C:
            assert frames[-2]["usage"]["total_tokens"] == 14
            assert frames[-2]["id"] == "chatcmpl-1"
    answer = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    document: dict[str, Any] = {"id": "x", **answer}
    if place == "choice":
        document["choices"][0]["usage"] = TOTALS
    elif place == "x_groq":
        document["x_groq"] = {"usage": TOTALS}
    else:
        document["usage"] = OTHER_TOTALS if place == "names" else TOTALS
    made, usage = exchange(C, C).complete(orjson.dumps(document))
    assert (usage, made["usage"]["total_tokens"]) == (TokenUsage(9, 5), 14)


def test_stream_that_is_done_gets_a_reason_for_each_choice() -> None:
    first, *_ = chat_chunks()
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    deltas: list[tuple[int, dict[str, Any], str | None]] = [
        (0, {"content": "A"}, None),
        (1, {"content": "B"}, None),
        (2, {"tool_calls": [call]}, None),
        (1, {}, "length"),
        (3, {"content": "C"}, None),
    ]
    chunks = [
        first | {"choices": [{"index": index, "delta": delta, "finish_reason": reason}]}
        for index, delta, reason in deltas
    ]
    stream = exchange(C, C, stream=True, n=4).open_stream()
    *_, ends, done = read_frames(run_stream(stream, [write_frames([first, *chunks, b"[DONE]"])]))
    assert done == "[DONE]"
    reasons = {each["index"]: each["finish_reason"] for each in ends["choices"]}
    assert reasons == {0: "stop", 2: "tool_calls", 3: "stop"}
    assert (ends["id"], ends["model"]) == ("chatcmpl-1", "m")


def test_google_stream_that_is_done_gets_a_reason_in_chat() -> None:
    [chunk] = google_chunks("Hi")
    del chunk["candidates"][0]["finishReason"]
    stream = exchange(C, G, stream=True).open_stream()
    frames = read_frames(run_stream(stream, [write_frames([chunk, b"[DONE]"])]))
    assert [frames[-2]["choices"][0]["finish_reason"], frames[-1]] == ["stop", "[DONE]"]


def test_calls_without_a_reason_end_for_calls() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": None}]}
    made, _ = exchange(C, C).complete(orjson.dumps(answer))
    assert made["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("client", [C, R])
def test_arguments_of_google_as_text_are_those_of_the_call(client: Format) -> None:
    part = {"functionCall": {"name": "f", "args": '{"x": 1}'}}
    [chunk] = google_chunks("")
    chunk["candidates"][0]["content"]["parts"] = [part]
    stream = exchange(client, G, stream=True).open_stream()
    assert rb'"arguments":"{\"x\":1}"' in run_stream(stream, [write_frames([chunk])])


@pytest.mark.parametrize("client", [C, R])
def test_unreadable_arguments_of_google_reach_the_client_as_received(client: Format) -> None:
    part = {"functionCall": {"name": "f", "args": '{"x": 1'}}
    [chunk] = google_chunks("")
    chunk["candidates"][0]["content"]["parts"] = [part]
    whole = orjson.dumps(exchange(client, G).complete(orjson.dumps(chunk))[0])
    streamed = run_stream(exchange(client, G, stream=True).open_stream(), [write_frames([chunk])])
    assert all(rb'"arguments":"{\"x\": 1"' in answer for answer in (whole, streamed))


@pytest.mark.parametrize("client", [C, R])
@pytest.mark.parametrize("extra", [{"willContinue": True}, {"partialArgs": [{"jsonPath": "$.x"}]}])
def test_call_of_google_in_pieces_is_not_made_without_arguments(
    client: Format, extra: dict[str, Any]
) -> None:
    [chunk] = google_chunks("")
    chunk["candidates"][0]["content"]["parts"] = [{"functionCall": {"name": "f", **extra}}]
    with pytest.raises(StreamBroken, match="pieces"):
        exchange(client, G, stream=True).open_stream().feed(write_frames([chunk]))
    with pytest.raises(InvalidAnswer, match="pieces"):
        exchange(client, G).complete(orjson.dumps(chunk))


def test_end_of_openai_in_a_stream_of_google_ends_nothing() -> None:
    first, last = google_chunks("Good", " day")
    first.pop("usageMetadata")
    usage = {"usageMetadata": last.pop("usageMetadata")}
    done = b"data: [DONE]\n\n"
    wire = write_frames([first]) + done + write_frames([last]) + done + write_frames([usage])
    stream = exchange(G, G, stream=True).open_stream()
    answer = run_stream(stream, [wire])
    assert all(text in answer for text in (b"Good", b" day", b"promptTokenCount"))
    assert stream.usage == TokenUsage(input=9, output=2)
