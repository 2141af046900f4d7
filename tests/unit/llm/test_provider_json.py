"""Frames and answers of providers that are no JSON, or have half of a character."""

from collections.abc import Callable, Sequence

import orjson
import pytest

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.chat_message import read_arguments
from gateway_core.llm.formats.provider_json import load
from tests.fakes.llm_calls import exchange
from tests.fakes.llm_cases import CASES, Case
from tests.fakes.llm_streams import (
    chat_chunks,
    google_chunks,
    responses_events,
    run_stream,
    write_frames,
)

FACE = "😀".encode()
LETTER = "é".encode()
EURO = "€".encode()
PAIRS = {
    "control characters": ([b"a\tb", b"c\x01d\x1b[0m"], "a\tbc\x01d\x1b[0m"),
    "letter in two frames": ([b"caf" + LETTER[:1], LETTER[1:] + b" au"], "café au"),
    "face in two frames": ([b"ok " + FACE[:3], FACE[3:]], "ok 😀"),
    "sign in three frames": ([b"1" + EURO[:1], EURO[1:2], EURO[2:] + b"!"], "1€!"),
    "face in four frames": ([FACE[:1], FACE[1:2], FACE[2:3], FACE[3:]], "😀"),
    "two halves": ([FACE[:2], FACE[2:] + LETTER[:1], LETTER[1:]], "😀é"),
    "half alone": ([b"a" + FACE[:2], b"b"], "a\ufffdb"),
    "end alone": ([b"a", LETTER[1:] + b"b"], "a\ufffdb"),
    "half of another": ([b"a" + FACE[:2], LETTER], "a\ufffdé"),
    "half at the end": ([b"a", b"b" + EURO[:1]], "ab\ufffd"),
    "byte and escape": ([b"a" + LETTER[:1], LETTER[1:] + rb"\ud83d", rb"\ude00"], "aé😀"),
}
WRITERS: dict[Format, Callable[..., list[dict[str, object]]]] = {
    Format.CHAT: chat_chunks,
    Format.RESPONSES: responses_events,
    Format.GOOGLE: google_chunks,
}


def write_wire(upstream: Format, pieces: Sequence[bytes]) -> bytes:
    """A stream of these texts, which are parts of JSON strings as they are sent."""
    marks = [f"text-{number}" for number in range(len(pieces))]
    chunks = WRITERS[upstream](*marks)
    wire = write_frames(chunks, named=upstream is Format.RESPONSES)
    for mark, piece in zip(marks, pieces, strict=True):
        # the events at the end of Responses have the whole text
        wire = wire.replace(mark.encode(), piece)
    return wire + (b"data: [DONE]\n\n" if upstream is Format.CHAT else b"")


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", CASES)
def test_stream_has_the_text_that_the_provider_meant(name: str, pair: str) -> None:
    case: Case = CASES[name]
    pieces, text = PAIRS[pair]
    wire = write_wire(case.upstream, pieces)
    if "CRLF" in name:
        wire = wire.replace(b"\n", b"\r\n")
    for parts in ([wire], [wire[place : place + 7] for place in range(0, len(wire), 7)]):
        got = case.read(run_stream(case.open(), parts))
        assert (got.text, got.error) == (text, None)


@pytest.mark.parametrize(
    ("client", "upstream"),
    [
        (client, upstream)
        for client in Format
        for upstream in Format
        if upstream is not Format.RESPONSES or client is upstream
    ],
)
def test_whole_answer_may_have_control_characters_and_numbers_that_are_none(
    client: Format, upstream: Format
) -> None:
    documents = {
        Format.CHAT: b'{"choices":[{"index":0,"message":{"content":"a\tb\nc"},"x":NaN,'
        b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":5,"cost":1e999}}',
        Format.RESPONSES: b'{"output":[{"type":"message","content":[{"type":"output_text",'
        b'"text":"a\tb\nc","x":NaN}]}],"usage":{"input_tokens":9,"output_tokens":5}}',
        Format.GOOGLE: b'{"candidates":[{"content":{"parts":[{"text":"a\tb\nc"}]},'
        b'"avgLogprobs":NaN,"finishReason":"STOP"}],"usageMetadata":'
        b'{"promptTokenCount":9,"candidatesTokenCount":5,"totalTokenCount":14}}',
    }
    document, usage = exchange(client, upstream).complete(documents[upstream])
    assert (usage.input, usage.output, usage.estimated) == (9, 5, False)
    assert rb'"a\tb\nc"' in orjson.dumps(document)


def test_numbers_that_are_none_become_null_but_for_the_smallest_logarithm() -> None:
    read = load(b'[NaN,Infinity,-Infinity,1e999,{"logprob":-Infinity},1.5,"NaN"]')
    assert read == [None, None, -9999.0, None, {"logprob": -9999.0}, 1.5, "NaN"]


def test_arguments_may_have_control_characters_but_no_number_that_is_none() -> None:
    assert read_arguments('{"text": "a\nb"}') == {"text": "a\nb"}
    assert read_arguments('{"a": NaN}') is None
    assert read_arguments('{"a": -Infinity}') is None
    assert read_arguments('{"path": "/x", "a": 1e999}') is None


def test_line_break_in_a_string_of_a_frame_is_part_of_the_text() -> None:
    wire = write_wire(Format.CHAT, [b"one\ntwo", b" three"])
    got = CASES["chat-of-chat"].read(run_stream(CASES["chat-of-chat"].open(), [wire]))
    assert (got.text, got.error) == ("one\ntwo three", None)
