"""Streams that are cut off or changed at every byte: clients get whole frames and an error."""

from collections import Counter

import pytest

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.sse import ErrorForm, StreamFailed
from gateway_core.llm.formats.streams import LlmStream
from tests.fakes.llm_cases import CASES, TEXTS, Case
from tests.fakes.llm_streams import cut
from tests.servers.llm_dialects import ReadStream
from tests.shares import share

FAILURE = ErrorForm("It failed.", 502, "server_error", "upstream_error", "UNAVAILABLE")


def run(case: Case, pieces: list[bytes]) -> tuple[ReadStream, LlmStream]:
    """What a client gets of the pieces, and the stream that passed them on."""
    stream, body = case.open(), b""
    try:
        for piece in pieces:
            body += stream.feed(piece)
            if stream.ended:
                break
        body += stream.finish()
    except StreamFailed as error:
        body += error.sent + stream.fail(FAILURE)
    return case.read(body), stream


@pytest.mark.parametrize("name", CASES)
def test_stream_that_is_cut_at_any_byte_ends_with_an_error(name: str) -> None:
    case = CASES[name]
    whole, stream = run(case, [case.wire])
    assert (whole.text, whole.error) == ("".join(TEXTS), None)
    total = stream.usage
    for end in range(len(case.wire)):
        size = 29 if end % 3 == 0 else end + 1
        got, stream = run(case, cut(case.wire[:end], range(0, end, size)))
        assert whole.text.startswith(got.text)
        if got.error is None:
            # all of the text and the reason of its end had come
            assert got.text == whole.text, end
        assert stream.usage in (None, total) or case.upstream is Format.GOOGLE
        assert stream.text_bytes >= len(got.text.encode()) * 0.8


DAMAGES = (b"", b"\xff", b"\xe6\x97", b"\x01", b'"', b"\\", b"}", b"\n", b"\n\n", b"\r", None)
"""What stands in a byte's place; None for the byte with another bit."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shift", range(share(len(DAMAGES))))
def test_stream_with_a_wrong_byte_keeps_the_form_of_its_dialect(name: str, shift: int) -> None:
    """It is passed on where no frame is the worse for it, else it ends with an error."""
    case, outcomes = CASES[name], Counter[bool]()
    for place, byte in enumerate(case.wire):
        damage = DAMAGES[(place + shift) % len(DAMAGES)]
        if damage is None:
            damage = bytes([byte ^ 4])
        wire = case.wire[:place] + damage + case.wire[place + 1 :]
        got, _ = run(case, cut(wire, range(0, len(wire), 200)))
        outcomes[got.error is None] += 1
    assert outcomes[False] > len(case.wire) / 10, outcomes


@pytest.mark.parametrize("name", CASES)
def test_stream_may_begin_with_a_byte_order_mark(name: str) -> None:
    case = CASES[name]
    got, _ = run(case, [b"\xef\xbb\xbf", case.wire])
    assert (got.text, got.error) == ("".join(TEXTS), None)


@pytest.mark.parametrize("name", CASES)
def test_frame_nested_too_deeply_to_encode_is_passed_or_ends_the_stream_with_an_error(
    name: str,
) -> None:
    case = CASES[name]
    deep = b'{"deep":%b%b,' % (b"[" * 500, b"]" * 500)
    first, _, rest = case.wire.partition(b"\n\n")
    got, _ = run(case, [first.replace(b"{", deep, 1) + b"\n\n" + rest])
    # a translation leaves such a field out
    assert got.text == ("" if got.error else "".join(TEXTS))
