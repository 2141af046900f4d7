"""Answers and streams of providers that keep their format loosely, translated."""

from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import Format, InvalidAnswer
from tests.fakes.llm_calls import exchange
from tests.fakes.llm_streams import chat_chunks, read_frames, run_stream, write_frames

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
