"""Streams of a provider on their way to the client, with the least work.

A stream is fed with pieces of the provider's stream, cut anywhere, and returns complete frames for
the client. Frames of the usual shape are checked and then changed as bytes, many at once: a quote
inside a JSON string is escaped, so `"model":"x"` with bare quotes is always a field. All other
frames, such as the first, the last and unusual ones, are parsed and encoded anew. Both ways give
the same frames, and neither passes on a frame that is not whole.
`count` is used instead of `in`, which raises and catches an exception for bytes.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import orjson

from gateway_core.llm.formats import provider_json
from gateway_core.llm.formats.answers import MOST_REASON_LENGTH, MOST_REASONS, ChoiceEnds
from gateway_core.llm.formats.calls import Format, TokenUsage
from gateway_core.llm.formats.failures import ReportedError, find_error
from gateway_core.llm.formats.output import shows_output
from gateway_core.llm.formats.provider_json import HalfJoiner
from gateway_core.llm.formats.reasons import check_reason
from gateway_core.llm.formats.sse import (
    MOST_FRAME_BYTES,
    ErrorForm,
    FrameSplitter,
    StreamBroken,
    StreamFailed,
    as_document,
    find_event,
    has_own_name,
    parse_data,
    read_data,
    split_frames,
)
from gateway_core.llm.formats.writers import Writer

NEVER = b"\n\n\n"
"""Bytes that no block of frames has often enough to match."""
SPACES = (b"", b" ")
"""What JSON encoders write after a colon or a comma."""
_DOCUMENTS = (b"{", b"[", b"<")
"""How JSON and HTML begin, and no line of a stream does."""
_DONE_WORDS = frozenset({b"[DONE]", b"DONE"})
_MOST_DONE_BYTES = 32
_WORDS = re.compile(rb"[A-Za-z][\w .:-]{0,63}")
"""Data that is no JSON, and no damaged chunk either, such as a ping."""
_MOST_DOCUMENT_BYTES = 64 * 1024
"""A longer document instead of a stream is looked at when the response has ended."""


class LlmStream(ABC):
    """A provider's stream of the format `upstream` on its way to the client, for whom `writer` is.

    `feed` and `finish` raise StreamFailed. `ended`: the stream is complete, and the provider
    sends nothing more that matters. `is_done`: the provider has said so, but for its usage, which
    some send after it. `has_output`: some frame had text, reasoning or a call.
    """

    def __init__(self, upstream: Format, writer: Writer) -> None:
        self.upstream = upstream
        self._writer = writer
        self.ended = False
        self.is_done = False
        self.has_output = False
        self.finish_reasons: list[str] = []
        """Why the choices ended, in the provider's words; not of Responses."""
        self.usage: TokenUsage | None = None
        """What the provider reported so far."""
        self.text_bytes = 0
        """Length of the output so far: what a broken-off stream is charged by."""
        self._ends = ChoiceEnds()
        self._splitter = FrameSplitter()
        self._joiner = HalfJoiner()

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory of a frame that is not whole yet."""
        return len(self._splitter.rest)

    def feed(self, data: bytes) -> bytes:
        """Return the frames for the client that `data` completes."""
        try:
            block = self._splitter.feed(data)
        except StreamBroken:
            # the provider has written it
            self.text_bytes += MOST_FRAME_BYTES
            raise
        if not block or self.ended:
            if not self.has_output:
                self._check_document()
            return b""
        return self._pass(block) if self.has_output else self._pass_beginning(block)

    def finish(self) -> bytes:
        """Return the last bytes for the client, after the provider's last; none once `ended`.

        StreamBroken if the stream ended early.
        """
        if self.ended:
            return b""
        sent = b""
        rest = self._splitter.finish()
        if rest:
            sent = self._pass(rest) if self.has_output else self._pass_beginning(rest)
        try:
            sent += self._release()
            return sent + self._complete()
        except StreamFailed as error:
            error.sent = sent
            raise

    def _note_ends(self, choices: Iterable[dict[str, Any]]) -> None:
        """Note which choices end in a chunk, and why. ReportedError if one failed."""
        reasons = self._ends.note(choices)
        if reasons:
            reasons = [reason[:MOST_REASON_LENGTH] for reason in reasons[:MOST_REASONS]]
            for reason in reasons:
                check_reason(reason)
            self.finish_reasons = [*self.finish_reasons, *reasons][:MOST_REASONS]

    def keep_alive(self) -> bytes:
        """Return what may be sent while the provider is silent (§7.2)."""
        return self._writer.keep_alive()

    def resume(self, held: bytes, early: Writer) -> bytes:
        """Go on with the stream that `early` began; the frames `held`, written anew."""
        return self._writer.resume(held, early)

    def fail(self, form: ErrorForm) -> bytes:
        """Return the last bytes for the client of a stream that fails."""
        return self._writer.fail(form)

    def _pass_usual(self, block: bytes) -> bytes | None:
        """Return the client's bytes for frames of the usual shape; None if one has another."""
        return None

    @abstractmethod
    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        """Return the client's bytes for a frame of any shape, and the document in it.

        They are empty for what is no chunk of the format, such as a ping.
        """

    def _pass_done(self) -> bytes:
        """Return the client's bytes for a [DONE]."""
        return b""

    def _may_have_late_usage(self) -> bool:
        """Return whether the provider may send the usage after a [DONE]."""
        return self._ends.has_any and not (self.usage and self.usage.output)

    def _note_usage(self, document: dict[str, Any]) -> bool:
        """Note the usage in a frame. Return whether it has one."""
        return False

    def _find_error(self, document: dict[str, Any]) -> ReportedError | None:
        """Return the error that a frame reports."""
        return find_error(document)

    @abstractmethod
    def _complete(self) -> bytes:
        """Return the bytes that end the client's stream. StreamBroken if it ended early."""

    def _pass_frame(self, frame: bytes) -> bytes:
        data = read_data(frame)
        if self.is_done:
            return self._pass_late(data)
        if not data:
            if frame.startswith(_DOCUMENTS) and not _is_done(frame):
                raise find_error(_parse(frame)) or StreamBroken("The response is no stream.")
            if not _is_done(frame):
                return b""
            data = frame
        if len(data) < _MOST_DONE_BYTES and _is_done(data):
            self.is_done = self._may_have_late_usage()
            return self._release() + (b"" if self.is_done else self._pass_done())
        if not self._joiner.is_waiting:
            try:
                document = orjson.loads(data)
            except orjson.JSONDecodeError:
                # it may have half a character
                pass
            else:
                if type(document) is not dict:
                    document = as_document(document)
                return self._pass_checked(document, frame)
        try:
            ready = self._joiner.add(data, frame)
        except ValueError as error:
            if has_own_name(frame) or _WORDS.fullmatch(data):
                return b""
            whole = frame.partition(b"data:")[2].strip()
            if whole.count(b"\n") > frame.count(b"\ndata:"):
                # a line break without an escape, in a string
                with suppress(ValueError):
                    return self._pass_ready(self._joiner.add(whole, frame))
            if data.find(b"\n") >= 0:
                # some servers leave out the blank lines between their frames
                lines = (b"data: %b\n\n" % line for line in data.split(b"\n"))
                return self._pass_all(lines, self._pass_frame)
            raise StreamBroken("A frame of the provider is not JSON.", self._release()) from error
        return self._pass_ready(ready)

    def _pass_checked(self, document: dict[str, Any], frame: bytes) -> bytes:
        # most frames do not even have the word
        if frame.find(b"error") >= 0 or self.upstream is Format.RESPONSES:
            error = self._find_error(document)
            if error is None and find_event(frame) == b"error":
                error = find_error({"error": document or "The provider failed."})
            if error is not None:
                raise error
        if not self.has_output:
            self.has_output = shows_output(document, self.upstream)
        return self._pass_document(document, frame)

    def _pass_late(self, data: bytes) -> bytes:
        """Return the end of the client's stream, where a frame after the end has the usage."""
        try:
            document = parse_data(data)
        except StreamBroken:
            return b""
        return self._pass_done() if self._note_usage(document) else b""

    def _check_document(self) -> None:
        """Raise the error of a whole document instead of a stream, whose connection may stay."""
        rest = self._splitter.rest
        if rest.startswith(_DOCUMENTS) and len(rest) <= _MOST_DOCUMENT_BYTES:
            document = _parse(bytes(rest))
            if document is not None:
                raise find_error(document) or StreamBroken("The response is no stream.")

    def _pass_beginning(self, block: bytes) -> bytes:
        """Return the client's bytes for frames; those before the first output are seen singly."""
        sent = b""
        try:
            while block and not (self.has_output or self.ended):
                end = block.find(b"\n\n") + 2
                frame, block = block[:end].lstrip(b"\n"), block[end:]
                sent += self._pass_frame(frame)
            return sent + self._pass(block) if block and not self.ended else sent
        except (StreamFailed, orjson.JSONEncodeError) as error:
            raise add_sent(error, sent) from error

    def _pass_ready(self, ready: Iterable[tuple[Any, bytes]]) -> bytes:
        """Return the client's bytes for documents that have waited for the half of a character."""
        sent = b""
        for document, frame in ready:
            if self.ended:
                break
            try:
                sent += self._pass_checked(as_document(document), frame)
            except (StreamFailed, orjson.JSONEncodeError) as error:
                raise add_sent(error, sent) from error
        return sent

    def _release(self) -> bytes:
        return self._pass_ready(self._joiner.release())

    def _pass(self, block: bytes) -> bytes:
        passed = self._try_usual(block)
        if passed is not None:
            return passed
        # mostly the first frames and the last ones alone differ: role; finish reason, usage, [DONE]
        first = block.find(b"\n\n", block.find(b"\n\n") + 2) + 2
        last = len(block)
        for _ in range(3):
            last = block.rfind(b"\n\n", 0, max(0, last - 2)) + 2
        if not 1 < first < last:
            return self._pass_all(split_frames(block), self._pass_single)
        return self._pass_all(
            (*split_frames(block[:first]), block[first:last], *split_frames(block[last:])),
            self._pass_middle,
        )

    def _try_usual(self, block: bytes) -> bytes | None:
        # a document that waits for half a character comes first
        return None if self._joiner.is_waiting or self.is_done else self._pass_usual(block)

    def _pass_middle(self, block: bytes) -> bytes:
        """Frames that are probably usual, else their halves, down to single frames."""
        passed = self._try_usual(block)
        if passed is not None:
            return passed
        middle = block.find(b"\n\n", len(block) // 2, -2) + 2
        if middle == 1:
            middle = block.rfind(b"\n\n", 0, -2) + 2
        if middle == 1:
            return self._pass_all(split_frames(block), self._pass_frame)
        return self._pass_all((block[:middle], block[middle:]), self._pass_middle)

    def _pass_single(self, frame: bytes) -> bytes:
        passed = self._try_usual(frame)
        return self._pass_frame(frame) if passed is None else passed

    def _pass_all(self, blocks: Iterable[bytes], pass_on: Callable[[bytes], bytes]) -> bytes:
        """Return the client's bytes for blocks in turn, up to the end of the stream."""
        sent = b""
        for block in blocks:
            if self.ended:
                break
            try:
                sent += pass_on(block)
            except (StreamFailed, orjson.JSONEncodeError) as error:
                raise add_sent(error, sent) from error
        return sent


def _is_done(data: bytes) -> bool:
    """Return whether the data of a frame, or a line alone, are the end of a stream."""
    words = data.replace(b'"', b"").upper().split() if len(data) < _MOST_DONE_BYTES else ()
    return bool(words) and set(words) <= _DONE_WORDS


def _parse(frame: bytes) -> Any:
    """Return the document that a provider sent instead of a stream; None if it cannot be read."""
    try:
        return provider_json.load(frame)
    except ValueError:
        return None


def add_sent(error: StreamFailed | orjson.JSONEncodeError, sent: bytes) -> StreamFailed:
    """Return the error of a frame after the client's bytes `sent` for those before it."""
    if isinstance(error, StreamFailed):
        error.sent = sent + error.sent
        return error
    # more levels are decoded than encoded
    return StreamBroken("A frame of the provider is nested too deeply.", sent)


def parse_usual(texts: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the documents of usual frames, each text in braces; empty if one is damaged."""
    try:
        return [orjson.loads(text) for text in texts]
    except orjson.JSONDecodeError:
        return []


def write_field(name: bytes, space: bytes, value: Any) -> bytes:
    """Return a field of a JSON object, as an encoder writes it."""
    return b'"%b":%b%b' % (name, space, orjson.dumps(value))
