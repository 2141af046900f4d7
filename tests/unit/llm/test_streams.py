"""Streams of a provider that speaks the client's format (contract §7.2, §7.3, §8.5)."""

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.llm.formats import sse
from gateway_core.llm.formats.calls import Format, TokenUsage
from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.google_stream import GoogleStream
from gateway_core.llm.formats.responses_stream import ResponsesStream
from gateway_core.llm.formats.sse import ErrorForm, StreamBroken
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.writers import ResponsesWriter
from tests.fakes.llm_calls import exchange
from tests.fakes.llm_streams import (
    chat_chunks,
    cut,
    google_chunks,
    read_frames,
    responses_events,
    run_stream,
    write_frames,
)

TEXTS = ("Hé", "llo", ' "quoted" \\ {"model":"x"}', "", "日本語", "\n\ndata: [DONE]\n\n", " end")
DONE = b"data: [DONE]\n\n"
FAILURE = ErrorForm("It failed.", 502, "server_error", "upstream_error", "UNAVAILABLE")


def chat(*, usage: bool = True, include: bool = False) -> tuple[LlmStream, bytes]:
    upstream = write_frames(chat_chunks(*TEXTS, usage=usage)) + DONE
    return ChatStream("acme/public", include_usage=include), upstream


CASES: dict[str, Callable[[], tuple[LlmStream, bytes]]] = {
    "chat": chat,
    "chat with usage": lambda: chat(include=True),
    "chat without usage fields": lambda: chat(usage=False, include=True),
    "chat with CRLF": lambda: (chat()[0], chat()[1].replace(b"\n", b"\r\n")),
    "chat with comments": lambda: (chat()[0], chat()[1].replace(b"\n\n", b"\n\n: wait\n\n")),
    "chat with spaces": lambda: (
        chat()[0],
        chat()[1].replace(b'":', b'": ').replace(b',"', b', "'),
    ),
    "responses": lambda: (
        ResponsesStream("acme/public", 5),
        write_frames(responses_events(*TEXTS), named=True),
    ),
    "google": lambda: (
        GoogleStream("acme/public"),
        write_frames(google_chunks(*TEXTS), line_end=b"\r\n"),
    ),
    "google array": lambda: (
        GoogleStream("acme/public", event_stream=False),
        write_frames(google_chunks(*TEXTS)),
    ),
}


def expect(name: str) -> bytes:
    stream, upstream = CASES[name]()
    return run_stream(stream, [upstream])


@pytest.mark.parametrize("name", CASES)
@given(places=st.lists(st.integers(0, 20_000), max_size=60))
@settings(max_examples=60, deadline=None)
def test_pieces_cut_anywhere_give_the_same_stream(name: str, places: list[int]) -> None:
    stream, upstream = CASES[name]()
    assert run_stream(stream, cut(upstream, places)) == expect(name)
    assert stream.ended


@pytest.mark.parametrize("name", CASES)
def test_single_bytes_give_the_same_stream(name: str) -> None:
    stream, upstream = CASES[name]()
    assert run_stream(stream, cut(upstream, range(len(upstream)))) == expect(name)


def test_chat_has_public_model_and_no_usage_unless_asked() -> None:
    frames = read_frames(expect("chat"))
    expected = [chunk | {"model": "acme/public"} for chunk in chat_chunks(*TEXTS, usage=False)]
    assert frames == [*expected, "[DONE]"]


@pytest.mark.parametrize("usage", [True, False])
def test_chat_with_usage_has_null_in_each_chunk_and_totals_last(usage: bool) -> None:
    stream, upstream = chat(usage=usage, include=True)
    *chunks, done = read_frames(run_stream(stream, [upstream]))
    assert done == "[DONE]"
    if usage:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["model"] == "acme/public"
        assert last["usage"]["total_tokens"] == 14
        assert stream.usage == TokenUsage(9, 5, cached=4)
    else:
        assert stream.usage is None
    assert len(chunks) == len(TEXTS) + 2
    assert all(chunk["usage"] is None for chunk in chunks)


def test_chat_usage_beside_choices_moves_to_the_end() -> None:
    chunks = chat_chunks("a", "b", usage=False)
    for number, chunk in enumerate(chunks, 1):
        chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": number, "total_tokens": 0}
    stream = ChatStream("m", include_usage=True)
    *passed, last, done = read_frames(run_stream(stream, [write_frames(chunks) + DONE]))
    assert [chunk["usage"] for chunk in passed] == [None] * 4
    assert (last["choices"], last["usage"]["completion_tokens"], done) == ([], 4, "[DONE]")
    assert stream.usage == TokenUsage(3, 4)


def test_chat_maps_a_model_that_changes_and_leaves_nested_ones() -> None:
    chunks = chat_chunks("a", "b", "c", usage=False)
    chunks[2]["model"] = "other"
    chunks[3]["choices"][0]["delta"]["vendor"] = {"model": "nested"}
    [_, first, second, third, _, _] = read_frames(
        run_stream(ChatStream("m", include_usage=False), [write_frames(chunks) + DONE])
    )
    assert [first["model"], second["model"], third["model"]] == ["m", "m", "m"]
    assert third["choices"][0]["delta"]["vendor"] == {"model": "nested"}


def test_chat_passes_unknown_finish_reasons() -> None:
    chunks = chat_chunks("a")
    chunks[2]["choices"][0]["finish_reason"] = "eos"
    frames = read_frames(
        run_stream(ChatStream("m", include_usage=False), [write_frames(chunks) + DONE])
    )
    assert frames[2]["choices"][0]["finish_reason"] == "eos"


@pytest.mark.parametrize("space", [b"", b" "])
@pytest.mark.parametrize("most", [1, 3, 99])
def test_chat_passes_pieces_of_calls_however_many_come_at_once(most: int, space: bytes) -> None:
    pieces: list[dict[str, Any]] = [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f"}},
        *({"index": 0, "function": {"arguments": text}} for text in ('{"a" :', " 1", "", "}")),
        {"index": 0, "id": "call_b", "type": "function", "function": {"name": "g"}},
        *({"index": 0, "function": {"arguments": text}} for text in ("{}", "")),
    ]
    first, text, *ends = chat_chunks("", usage=False)
    chunks = [first]
    for piece in pieces:
        choice = text["choices"][0] | {"delta": {"tool_calls": [piece]}}
        chunks.append(text | {"choices": [choice]})
    frames = [
        write_frames([chunk]).replace(b'":', b'":' + space) for chunk in (*chunks, *ends, b"[DONE]")
    ]
    blocks = [b"".join(frames[place : place + most]) for place in range(0, len(frames), most)]
    stream = ChatStream("m", include_usage=False)
    passed = read_frames(run_stream(stream, blocks))[1 : 1 + len(pieces)]
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in passed]
    assert [call["index"] for call in calls] == [0] * 5 + [1] * 3
    assert [call.get("id") for call in calls if call.get("id")] == ["call_a", "call_b"]
    texts = [call["function"].get("arguments", "") for call in calls]
    assert texts == ["", '{"a" :', " 1", "", "}", "", "{}", ""]
    assert all(chunk["model"] == "m" for chunk in passed)
    assert stream.text_bytes == len('fg{"a" : 1}{}')


@pytest.mark.parametrize("name", CASES)
def test_empty_lines_between_frames_are_dropped(name: str) -> None:
    stream, upstream = CASES[name]()
    passed = stream.feed(b"\n\n\n") + stream.feed(upstream) + stream.finish()
    assert passed == expect(name)


def test_chat_drops_ids_retries_and_empty_events() -> None:
    fields = rb"event: ping\n\nid: 7\nretry: 5\ndata:"
    upstream = re.sub(rb"(?m)^data: ", fields, chat()[1])
    assert run_stream(chat()[0], [upstream]) == expect("chat")


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]", b"data: [DONE]\n"])
def test_chat_ends_with_done_even_if_the_provider_omits_it(tail: bytes) -> None:
    stream, upstream = chat()
    assert run_stream(stream, [upstream.removesuffix(DONE) + tail]) == expect("chat")


def test_stream_ends_with_done() -> None:
    stream, upstream = chat()
    assert run_stream(stream, [upstream, upstream, b": more\n\n"]) == expect("chat")


def test_chunks_that_vary_behind_their_text_are_not_divided_for_each_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(number: int) -> bytes:
        # OpenAI pads its chunks by a field that differs in each
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "model": "up-1",
            "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}],
            "obfuscation": f"{number:04}",
        }
        return b"data: %b\n\n" % orjson.dumps(chunk)

    divided = 0
    divide = ChatStream._pass_texts

    def count(self: ChatStream, block: bytes) -> tuple[bytes, bytes]:
        nonlocal divided
        divided += 1
        return divide(self, block)

    monkeypatch.setattr(ChatStream, "_pass_texts", count)
    stream = ChatStream("public", include_usage=False)
    passed = b"".join(stream.feed(write(number)) for number in range(8))
    passed += stream.feed(b"".join(map(write, range(8, 600))))
    assert passed == b"".join(map(write, range(600))).replace(b"up-1", b"public")
    assert divided < 8


def test_responses_events_change_in_model_and_missing_counters_alone() -> None:
    frames = read_frames(expect("responses"))
    expected = responses_events(*TEXTS)
    for event in expected:
        if "response" in event:
            event["response"] = event["response"] | {"model": "acme/public"}
    usage = expected[-1]["response"]["usage"] | {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    expected[-1]["response"]["usage"] = usage
    assert frames == expected


def test_responses_usage_is_read() -> None:
    stream, upstream = CASES["responses"]()
    run_stream(stream, [upstream])
    assert stream.usage == TokenUsage(9, 5)


def test_responses_events_without_names_get_them() -> None:
    events = responses_events("a")
    passed = run_stream(ResponsesStream("m", 5), [write_frames(events) + DONE])
    assert passed == run_stream(ResponsesStream("m", 5), [write_frames(events, named=True)])


def test_google_frames_have_data_alone_and_public_model() -> None:
    passed = expect("google")
    assert passed.count(b"\n") == 2 * len(TEXTS)
    assert b"\r" not in passed
    expected = [chunk | {"modelVersion": "acme/public"} for chunk in google_chunks(*TEXTS)]
    assert read_frames(passed) == expected


def test_google_array_has_the_same_chunks() -> None:
    assert orjson.loads(expect("google array")) == read_frames(expect("google"))


@pytest.mark.parametrize("read", [3, len(TEXTS)])
def test_google_usage_is_that_of_the_last_chunk(read: int) -> None:
    stream = GoogleStream("m")
    stream.feed(write_frames(google_chunks(*TEXTS)[:read]))
    assert stream.usage == TokenUsage(9, read)


ERRORS: list[tuple[str, Any, str | None, int | None]] = [
    ("chat", {"error": {"message": "Overloaded", "code": "busy"}}, "busy", None),
    ("chat", {"error": {"message": "Overloaded", "type": "busy", "code": 503}}, "busy", 503),
    ("chat", {"error": "Overloaded"}, None, None),
    ("responses", {"type": "error", "message": "Overloaded", "code": "busy"}, "busy", None),
    ("google", {"error": {"code": 503, "message": "Overloaded", "status": "X"}}, "X", 503),
]


@pytest.mark.parametrize(("name", "document", "code", "status"), ERRORS)
def test_error_of_provider_is_raised_with_the_frames_before_it(
    name: str, document: Any, code: str | None, status: int | None
) -> None:
    stream, upstream = CASES[name]()
    before = upstream[: upstream.index("日本語".encode())].replace(b"\r\n", b"\n")
    before = before[: before.rindex(b"\n\n") + 2]
    other, _ = CASES[name]()
    with pytest.raises(ReportedError) as caught:
        stream.feed(before + write_frames([document]) + before)
    assert (caught.value.message, caught.value.code, caught.value.status) == (
        "Overloaded",
        code,
        status,
    )
    assert caught.value.sent == other.feed(before)
    assert caught.value.sent.count(b"\n\n") >= 4


@pytest.mark.parametrize("name", ["chat", "responses", "google"])
@pytest.mark.parametrize("junk", [b"data: {oops\n\n", b"data: \xff\n\n"])
def test_frame_that_is_no_json_breaks_the_stream(name: str, junk: bytes) -> None:
    stream, _ = CASES[name]()
    with pytest.raises(StreamBroken):
        stream.feed(junk)


@pytest.mark.parametrize("piece", [1000, 100_000, 2_000_000])
def test_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(sse, "MOST_FRAME_BYTES", 1_000_000)
    room = 1_000_000 - len(write_frames(chat_chunks("")[1:2]))
    allowed = write_frames(chat_chunks("a", "x" * room, "b")) + DONE
    stream = ChatStream("m", include_usage=False)
    frames = read_frames(run_stream(stream, cut(allowed, range(0, len(allowed), piece))))
    assert len(frames[2]["choices"][0]["delta"]["content"]) == room
    longer = write_frames(chat_chunks("a", "x" * (room + 1), "b")) + DONE
    stream = ChatStream("m", include_usage=False)
    with pytest.raises(StreamBroken):
        run_stream(stream, cut(longer, range(0, len(longer), piece)))


@pytest.mark.parametrize("name", CASES)
def test_text_of_broken_off_stream_is_measured(name: str) -> None:
    stream, upstream = CASES[name]()
    for piece in cut(upstream, range(0, len(upstream), 100)):
        stream.feed(piece)
    # frames that pass as bytes are measured with JSON's escapes
    escaped = sum(len(orjson.dumps(text)) - 2 for text in TEXTS)
    plain = sum(len(text.encode()) for text in TEXTS)
    assert plain * 0.85 <= stream.text_bytes <= escaped * 1.15


def test_failures_end_streams_in_their_format() -> None:
    error = {
        "message": "It failed.",
        "type": "server_error",
        "param": None,
        "code": "upstream_error",
    }
    assert read_frames(ChatStream("m", include_usage=True).fail(FAILURE)) == [{"error": error}]
    responses = ResponsesStream("m", 5)
    responses.feed(write_frames(responses_events("a", "b")[:5], named=True))
    [event, failed] = read_frames(responses.fail(FAILURE))
    assert [event] == [
        {
            "type": "error",
            "sequence_number": 5,
            "code": "upstream_error",
            "message": "It failed.",
            "param": None,
            "error": error,
        }
    ]
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 6)
    shown = failed["response"]
    assert (shown["id"], shown["status"], shown["error"]) == (
        responses_events()[0]["response"]["id"],
        "failed",
        {"code": "server_error", "message": "It failed."},
    )
    assert GoogleStream("m").fail(FAILURE) == (
        b'data: {"error":{"code":502,"message":"It failed.","status":"UNAVAILABLE"}}\n\n'
    )


@pytest.mark.parametrize("read", [0, 1, 3])
def test_failed_google_array_is_valid_json(read: int) -> None:
    stream = GoogleStream("m", event_stream=False)
    passed = stream.feed(write_frames(google_chunks(*TEXTS)[:read])) + stream.fail(FAILURE)
    assert orjson.loads(passed)[-1]["error"]["code"] == 502
    assert len(orjson.loads(passed)) == read + 1


def test_keep_alive_is_a_comment_for_chat_and_an_empty_line_for_google() -> None:
    assert ChatStream("m", include_usage=True).keep_alive() == b": keep-alive\n\n"
    assert GoogleStream("m").keep_alive() == b"\n"
    assert GoogleStream("m", event_stream=False).keep_alive() == b""


RESPONSE = {"id": "resp_up", "object": "response", "status": "in_progress", "output": []}
EVENTS = [
    {"type": "response.created", "sequence_number": 0, "response": RESPONSE},
    {"type": "response.in_progress", "sequence_number": 1, "response": RESPONSE},
    {
        "type": "response.output_text.delta",
        "sequence_number": 2,
        "output_index": 0,
        "content_index": 0,
        "item_id": "m",
        "delta": "Hi",
        "logprobs": [],
    },
    {
        "type": "response.completed",
        "sequence_number": 3,
        "response": {**RESPONSE, "status": "completed"},
    },
]
CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


@pytest.mark.parametrize("beats_at", [0, 1, 2, 3])
@pytest.mark.parametrize("upstream", [Format.RESPONSES, Format.CHAT])
def test_silent_responses_stream_gets_events_of_the_same_response(
    upstream: Format, beats_at: int
) -> None:
    documents = EVENTS if upstream is Format.RESPONSES else CHUNKS
    frames = [write_frames([document]) for document in documents]
    stream = exchange(Format.RESPONSES, upstream, stream=True).open_stream()
    sent = b""
    for frame in frames[:beats_at]:
        sent += stream.feed(frame)
    sent += stream.keep_alive() + stream.keep_alive()
    for frame in frames[beats_at:]:
        sent += stream.feed(frame)
    events = read_frames(sent + stream.finish())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.created") == 1
    assert kinds.count("response.in_progress") == 2 + (beats_at > 0)
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    beats = [event["response"] for event in events if event["type"] == "response.in_progress"]
    assert all(beat["status"] == "in_progress" for beat in beats)
    assert events[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize("upstream", [Format.RESPONSES, Format.CHAT])
@pytest.mark.parametrize("fails", [False, True])
def test_response_that_began_before_its_model_was_known_goes_on_as_one(
    upstream: Format, fails: bool
) -> None:
    early = ResponsesWriter("m", 5)
    sent = early.keep_alive() + early.keep_alive()
    stream = exchange(Format.RESPONSES, upstream, stream=True).open_stream()
    documents = EVENTS if upstream is Format.RESPONSES else CHUNKS
    *begun, last = [write_frames([document]) for document in documents]
    held = b"".join(map(stream.feed, begun))
    sent += stream.resume(held, early) + stream.keep_alive()
    sent += stream.fail(FAILURE) if fails else stream.feed(last) + stream.finish()
    events = read_frames(sent)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds.count("response.created") == 1
    assert kinds.count("response.in_progress") == 3
    assert "response.output_text.delta" in kinds
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert kinds[-1] == ("response.failed" if fails else "response.completed")
