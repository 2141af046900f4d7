"""Streams of a provider on their way to the client, with the least work.

A stream is fed with pieces of the provider's stream, cut anywhere, and returns complete frames for
the client. Frames of the usual shape are changed as bytes, many at once: a quote inside a JSON
string is escaped, so `"model":"x"` with bare quotes is always a field. All other frames, such as
the first, the last and unusual ones, are parsed. Both ways give the same frames.
`count` is used instead of `in`, which raises and catches an exception for bytes.
"""

from abc import ABC, abstractmethod
from typing import Any

import orjson

from gateway_core.llm.formats.calls import TokenUsage
from gateway_core.llm.formats.sse import (
    ErrorForm,
    FrameSplitter,
    StreamFailed,
    parse_data,
    read_data,
    split_frames,
)

NEVER = b"\n\n\n"
"""Bytes that no block of frames has often enough to match."""
SPACES = (b"", b" ")
"""What JSON encoders write after a colon or a comma."""


class LlmStream(ABC):
    """A provider's stream on its way to the client.

    `feed` and `finish` raise StreamFailed. `ended`: the stream is complete, and the provider
    sends nothing more that matters.
    """

    def __init__(self) -> None:
        self.ended = False
        self.failed = False
        """Whether the provider reported its failure in a frame of the format."""
        self._usage: TokenUsage | None = None
        self._splitter = FrameSplitter()
        self._text_bytes = 0
        # frames passed as bytes: their number, their length, and a sample to measure their text by
        self._frames = 0
        self._frame_bytes = 0
        self._sample = b""

    def feed(self, data: bytes) -> bytes:
        """The frames for the client that `data` completes."""
        block = self._splitter.feed(data)
        if not block or self.ended:
            return b""
        return self._pass(block)

    def finish(self) -> bytes:
        """The last bytes for the client, after the provider's last.

        StreamBroken if the stream ended early.
        """
        sent = b""
        rest = self._splitter.finish()
        if rest and not self.ended:
            sent = self._pass(rest)
        try:
            return sent + self._complete()
        except StreamFailed as error:
            error.sent = sent
            raise

    @property
    def usage(self) -> TokenUsage | None:
        """What the provider reported so far."""
        return self._usage

    @property
    def text_bytes(self) -> int:
        """Length of the output so far, about: what a broken-off stream is charged by."""
        if not self._sample:
            return self._text_bytes
        frames = list(split_frames(self._sample))
        try:
            text = sum(self._measure(parse_data(read_data(frame))) for frame in frames)
        except StreamFailed:
            # passed on unparsed, and not what it looked like
            return self._text_bytes + self._frame_bytes
        envelope = (len(self._sample) - text) / len(frames)
        return self._text_bytes + max(0, round(self._frame_bytes - envelope * self._frames))

    @abstractmethod
    def fail(self, form: ErrorForm) -> bytes:
        """The last bytes for the client of a stream that fails."""

    @abstractmethod
    def _pass_usual(self, block: bytes) -> bytes | None:
        """The client's bytes for frames that all have the usual shape; None if not all have."""

    @abstractmethod
    def _pass_frame(self, frame: bytes) -> bytes:
        """The client's bytes for a frame of any shape; may be empty."""

    @abstractmethod
    def _complete(self) -> bytes:
        """The bytes that end the client's stream. StreamBroken if it ended early."""

    @abstractmethod
    def _measure(self, document: dict[str, Any]) -> int:
        """Bytes of output in a chunk."""

    def _pass(self, block: bytes) -> bytes:
        passed = self._pass_usual(block)
        if passed is not None:
            return passed
        # a half may be usual where the whole is not, as only the first and last frames differ
        middle = block.find(b"\n\n", len(block) // 2, -2) + 2
        if middle == 1:
            middle = block.rfind(b"\n\n", 0, -2) + 2
        if middle > 1:
            sent = self._pass(block[:middle])
            if self.ended:
                return sent
            try:
                return sent + self._pass(block[middle:])
            except StreamFailed as error:
                error.sent = sent + error.sent
                raise
        return b"".join(map(self._pass_frame, split_frames(block)))

    def _count(self, block: bytes, frames: int) -> None:
        self._frames += frames
        self._frame_bytes += len(block)
        self._sample = block


def write_field(name: bytes, space: bytes, value: Any) -> bytes:
    """A field of a JSON object, as an encoder writes it."""
    return b'"%b":%b%b' % (name, space, orjson.dumps(value))
