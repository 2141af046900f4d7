"""Odd forms of chat answers, which the SDKs of all clients parse strictly."""

from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.sse import StreamBroken
from tests.fakes.llm_calls import exchange
from tests.fakes.llm_streams import chat_chunks, run_stream, write_frames
from tests.llm_cases.view import View, read_answer

CLIENTS = (Format.CHAT, Format.RESPONSES, Format.GOOGLE)
DONE = b"data: [DONE]\n\n"


def chunk(delta: Any, reason: Any = None, **choice: Any) -> bytes:
    shared = chat_chunks(usage=False)[0]
    choice = {"index": 0, "delta": delta, "finish_reason": reason, **choice}
    return write_frames([shared | {"choices": [choice]}])


def read_stream(format_: Format, *frames: bytes, **changes: Any) -> View:
    """What a client sees of a stream, which begins with a role."""
    wire = chunk({"role": "assistant", "content": ""}) + b"".join(frames)
    sent = run_stream(exchange(format_, Format.CHAT, stream=True, **changes).open_stream(), [wire])
    return read_answer(format_, sent, stream=True)


def read_whole(format_: Format, message: Any, reason: Any = "stop") -> View:
    message = {"role": "assistant", **message}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    shared = {"id": "c", "object": "chat.completion", "created": 1, "model": "up"}
    answer = orjson.dumps(shared | {"choices": [choice]})
    document, _ = exchange(format_, Format.CHAT).complete(answer)
    return read_answer(format_, orjson.dumps(document), stream=False)


def piece(arguments: Any = None, name: str | None = None, **fields: Any) -> bytes:
    function = {"name": name, "arguments": arguments}
    given = {key: value for key, value in function.items() if value is not None}
    return chunk({"tool_calls": [{**fields, "function": given}]})


ONE = [("f", {"x": 1})]
TWO = [*ONE, ("g", {"x": 2})]
PIECES: list[tuple[list[bytes], list[tuple[str, Any]]]] = [
    # indexes that are no whole numbers
    (
        [
            piece("", "f", index=first),
            piece("", "g", index=second),
            piece('{"x":1}', index=first),
            piece('{"x":2}', index=second),
        ],
        TWO,
    )
    for first, second in (("0", "1"), (0.0, 1.0), ("3", "1"))
]
PIECES += [
    # the name so far in each piece
    (
        [piece("", "ge", index=0, id="a"), piece('{"x":1}', "get", index=0, id="a")],
        [("get", {"x": 1})],
    ),
    # the whole call again at the end
    ([piece('{"x":1}', "f", index=0, id="a"), piece('{"x":1}', "f", index=0, id="a")], ONE),
    ([piece('{"x":', "f", id="a"), piece("1}"), piece('{"x":1}', "f", id="a")], ONE),
    # calls alike with ids of their own
    ([piece('{"x":1}', "f", index=0, id="a"), piece('{"x":1}', "f", index=0, id="b")], ONE * 2),
    ([piece('{"x":1}', "f", index=0, id="a"), piece('{"x":1}', "f", index=1, id="a")], ONE * 2),
    # types that are none
    ([piece('{"x":', "f", index=0, id="a", type=""), piece("1}", index=0, type=None)], ONE),
    ([chunk({"tool_calls": {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}})], ONE),
]


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize(("pieces", "calls"), PIECES)
def test_calls_of_odd_pieces_are_those_that_the_provider_meant(
    format_: Format, pieces: list[bytes], calls: list[tuple[str, Any]]
) -> None:
    view = read_stream(format_, *pieces, chunk({}, "tool_calls"), DONE)
    assert [(call["name"], read_arguments(call)) for call in view.calls] == calls
    assert len({call["id"] for call in view.calls} - {""}) == len(calls)


FUNCTIONS = ("get", "get_weather", "list", "now", "listen_now_and_then")
TOOLS: dict[Format, list[dict[str, Any]]] = {
    Format.CHAT: [{"type": "function", "function": {"name": name}} for name in FUNCTIONS],
    Format.RESPONSES: [{"type": "function", "name": name} for name in FUNCTIONS],
    Format.GOOGLE: [{"functionDeclarations": [{"name": name} for name in FUNCTIONS]}],
}


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize("empty", [None, ""])
@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["get_", "weather"], ["get_weather"]),
        (["get", "_weather"], ["get_weather"]),
        (["get_w", "get_weather"], ["get_weather"]),
        (["get", "get_weather"], ["get", "get_weather"]),
        (["lis", "ten_now", "_and", "_then"], ["listen_now_and_then"]),
        (["list", "now"], ["list", "now"]),
        (["list", "now", "get_", "weather"], ["list", "now", "get_weather"]),
        (["get_weather", "get_weather"], ["get_weather"]),
    ],
)
def test_pieces_of_a_name_without_ids_are_told_from_names(
    format_: Format, empty: str | None, names: list[str], meant: list[str]
) -> None:
    pieces = [piece(empty, name, index=0) for name in names]
    ends = [piece("{}", index=0), chunk({}, "tool_calls"), DONE]
    view = read_stream(format_, *pieces, *ends, tools=TOOLS[format_])
    assert [call["name"] for call in view.calls] == meant


def read_arguments(call: dict[str, Any]) -> Any:
    given = call["arguments"]
    return orjson.loads(given) if isinstance(given, str) else given


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize(
    "reason", ["null", "None", "in_progress", " ", "FINISH_REASON_UNSPECIFIED"]
)
def test_words_for_no_reason_do_not_end_a_stream(format_: Format, reason: str) -> None:
    frames = [chunk({"content": "Good"}, reason), chunk({"content": " day"}, reason)]
    with pytest.raises(StreamBroken, match="early"):
        read_stream(format_, *frames)
    view = read_stream(format_, *frames, DONE)
    assert (view.text, view.finish) in [("Good day", end) for end in ("stop", "completed", "STOP")]
    assert read_whole(format_, {"role": "assistant", "content": "x"}, reason).text == "x"


@pytest.mark.parametrize("format_", CLIENTS)
def test_done_without_a_choice_is_an_early_end(format_: Format) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    for frames in (DONE, write_frames([{"choices": [], "usage": usage}]) + DONE):
        stream = exchange(format_, Format.CHAT, stream=True).open_stream()
        with pytest.raises(StreamBroken, match="no choice"):
            stream.feed(frames)


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize(
    "done",
    [
        b"data: [DONE] \n\n",
        b"data:  [DONE]\n\n",
        b'data: "[DONE]"\n\n',
        b"data: [done]\n\n",
        b"data: DONE\n\n",
        b"[DONE]\n\n",
        b"[DONE]",
        b"data: [DONE]\ndata: [DONE]\n\n",
        b"event: done\ndata: [DONE]\n\n",
    ],
)
def test_done_in_other_forms_ends_a_stream(format_: Format, done: bytes) -> None:
    view = read_stream(format_, chunk({"content": "Good"}), done)
    assert (view.text, view.done) == ("Good", format_ is Format.CHAT)
    assert read_stream(format_, chunk({"content": "Good"}, "stop"), done).text == "Good"


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize(
    "frames",
    [
        [chunk({"content": "Good"}), b"data: ping\n\n", b"data: still here ...\n\n", DONE],
        [(chunk({"content": "Good"}) + DONE).replace(b"\n\n", b"\n") + b"\n"],
        [chunk({"content": "Good"}), chunk(None, "stop"), DONE],
        [chunk(None, message={"content": "Good"}), chunk({}, "stop"), DONE],
        [chunk({"content": "Good", "role": ""}), chunk({"role": "model"}, "stop"), DONE],
    ],
)
def test_chunks_that_lack_something_are_read(format_: Format, frames: list[bytes]) -> None:
    view = read_stream(format_, *frames)
    assert (view.text, view.error) == ("Good", None)
    assert view.finish in ("stop", "completed", "STOP")


MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"content": 5}, "5", ""),
    ({"content": {"parts": [{"text": "a"}, {"text": "b"}]}}, "ab", ""),
    ({"content": None, "refusal": [{"type": "refusal", "refusal": "no"}]}, "no", ""),
    ({"content": [{"text": "hm", "thought": True}, {"text": "a"}]}, "a", "hm"),
    ({"role": "model", "content": "a"}, "a", ""),
    ({"role": None, "content": "a"}, "a", ""),
]
OTHERS: list[tuple[dict[str, Any], str, str]] = [
    ({"content": "a", "reasoning_text": "hm"}, "a", "hm"),
    ({"content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}]}, "a", "hm"),
    ({"content": "a", "function_call": {}}, "a", ""),
]


@pytest.mark.parametrize(
    ("format_", "message", "text", "reasoning"),
    [
        (format_, *message)
        for format_ in CLIENTS
        for message in (MESSAGES if format_ is Format.CHAT else MESSAGES + OTHERS)
    ],
)
def test_texts_are_read_wherever_they_stand(
    format_: Format, message: dict[str, Any], text: str, reasoning: str
) -> None:
    whole = read_whole(format_, message)
    streamed = read_stream(format_, chunk(message), chunk({}, "stop"), DONE)
    for view in (whole, streamed):
        assert (view.text, view.reasoning, view.calls) == (text, reasoning, [])


def test_call_without_a_name_is_incomplete() -> None:
    view = read_stream(Format.RESPONSES, piece("{}", index=0), DONE)
    assert [call["status"] for call in view.calls] == ["incomplete"]


def test_first_form_of_calls_ends_with_its_own_reason() -> None:
    message = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    assert read_stream(Format.CHAT, chunk(message), DONE).finish == "function_call"
    assert read_whole(Format.CHAT, {"content": None, **message}, None).finish == "function_call"


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize("bytes_", [b"\xff", b"\xf0\x9f", b"\xe6\x97"])
def test_bytes_of_half_a_character_do_not_end_a_stream(format_: Format, bytes_: bytes) -> None:
    frame = chunk({"content": "Go_d"}).replace(b"_", bytes_)
    view = read_stream(format_, frame, chunk({}, "stop"), DONE)
    assert view.text.replace("\ufffd", "") == "God"


def test_object_of_a_chunk_is_named_as_the_format_names_it() -> None:
    named = [chunk({"content": "Good"}), chunk({}, "stop")]
    other = [frame.replace(b"chat.completion.chunk", b"chat.completion") for frame in named]
    filtered = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
    first = write_frames([filtered | {"prompt_filter_results": []}])
    assert read_stream(Format.CHAT, first, *named, DONE).text == "Good"
    assert read_stream(Format.CHAT, *other, DONE).text == "Good"


USAGE = write_frames(
    [{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}]
)


@pytest.mark.parametrize("format_", CLIENTS)
@pytest.mark.parametrize("is_at_once", [True, False])
def test_usage_after_the_end_is_read(format_: Format, is_at_once: bool) -> None:
    frames = [chunk({"content": "Good"}), DONE, b": ping\n\n", chunk({"content": "no"}), USAGE]
    pieces = [b"".join(frames)] if is_at_once else frames
    stream = exchange(
        format_, Format.CHAT, stream=True, **CLIENTS_WITH_USAGE.get(format_, {})
    ).open_stream()
    sent = b"".join(map(stream.feed, pieces))
    assert stream.ended
    view = read_answer(format_, sent, stream=True)
    assert (view.text, view.done) == ("Good", format_ is Format.CHAT)
    assert view.usage is not None
    assert (view.usage["input"], view.usage["output"]) == (9, 5)


CLIENTS_WITH_USAGE: dict[Format, dict[str, Any]] = {
    Format.CHAT: {"stream_options": {"include_usage": True}}
}


@pytest.mark.parametrize("format_", CLIENTS)
def test_stream_whose_usage_never_comes_ends_well(format_: Format) -> None:
    stream = exchange(format_, Format.CHAT, stream=True).open_stream()
    sent = stream.feed(chunk({"content": "Good"}) + DONE)
    assert (stream.is_done, stream.ended) == (True, False)
    sent += stream.feed(b"<html>") + stream.finish()
    view = read_answer(format_, sent, stream=True)
    assert (view.text, view.done) == ("Good", format_ is Format.CHAT)
