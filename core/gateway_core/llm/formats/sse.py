"""Server-sent events of language models: frames from bytes, and of documents."""

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_core.llm.formats import provider_json
from gateway_core.llm.formats.calls import as_object

MOST_FRAME_BYTES = 32 * 1024 * 1024
"""As whole answers, since a frame may have an image. Frames beyond `LARGE_FRAME_BYTES` need room
that all streams share."""
LARGE_FRAME_BYTES = 1024 * 1024
DONE = b"data: [DONE]\n\n"
"""Last frame of a chat stream."""
_EVENTS = (b"", b"error", b"message")
"""Names of events of chat and Google streams."""


class StreamFailed(Exception):
    """A provider's stream cannot go on. `sent` has the frames for the client that preceded."""

    def __init__(self, message: str, sent: bytes = b"") -> None:
        super().__init__(message)
        self.message = message
        self.sent = sent


class StreamBroken(StreamFailed):
    """The stream ended early, has a frame that is too long, or is not of its format."""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """An error in the words of both formats (§1.2): HTTP status, OpenAI's and Google's names.

    `response_code` is that of a failed Responses object, and `retry_after` is in seconds.
    """

    message: str
    status: int
    openai_type: str
    code: str
    google_status: str
    response_code: str = "server_error"
    retry_after: int | None = None


class FrameSplitter:
    """Finds complete frames in pieces of a stream that are cut anywhere.

    Lines may end with LF, CRLF or CR; frames are returned with LF. StreamBroken where a frame is
    longer than `MOST_FRAME_BYTES`. `rest` is the beginning of an incomplete frame.
    """

    __slots__ = ("_has_return", "rest")

    def __init__(self) -> None:
        self.rest = bytearray()
        self._has_return = False

    def feed(self, data: bytes) -> bytes:
        """Return the frames that `data` completes, each with the blank line that ends it."""
        if self._has_return or data.find(b"\r") >= 0:
            data = self._convert_line_ends(data)
        rest = self.rest
        if not rest and data.endswith(b"\n\n"):
            if len(data) > MOST_FRAME_BYTES:
                _check_lengths(data)
            return data
        start = max(0, len(rest) - 1)
        rest += data
        end = rest.rfind(b"\n\n", start) + 2
        if end == 1:
            if len(rest) > MOST_FRAME_BYTES:
                raise _too_long()
            return b""
        block = bytes(rest[:end])
        del rest[:end]
        if len(block) > MOST_FRAME_BYTES:
            _check_lengths(block)
        if len(rest) > MOST_FRAME_BYTES:
            raise _too_long()
        return block

    def finish(self) -> bytes:
        """Return what is left at the end of the stream, as a frame.

        Servers may omit its blank line.
        """
        rest = bytes(self.rest).rstrip(b"\n")
        self.rest.clear()
        self._has_return = False
        return rest + b"\n\n" if rest else b""

    def _convert_line_ends(self, data: bytes) -> bytes:
        if self._has_return:
            data = b"\r" + data
        # the LF of a last CR may be in the next piece
        self._has_return = data.endswith(b"\r")
        if self._has_return:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def split_frames(block: bytes) -> Iterator[bytes]:
    """Yield the single frames of complete ones, each with its blank line."""
    for frame in block.split(b"\n\n"):
        stripped = frame.lstrip(b"\n")
        if stripped:
            yield stripped + b"\n\n"


def read_data(frame: bytes) -> bytes:
    """Return the joined `data` lines of a frame.

    The result is empty for comments and frames of other fields alone.
    """
    if frame.startswith(b"data: ") and frame.find(b"\n") == len(frame) - 2:
        # the usual one line
        return frame[len(b"data: ") : -2]
    lines = []
    # a byte order mark may begin the stream
    for line in frame.removeprefix(BOM_UTF8).splitlines():
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)


def find_event(frame: bytes) -> bytes:
    """Return the name of the event in a frame; empty without one."""
    start = frame.find(b"event:")
    if start < 0 or (start and frame[start - 1 : start] != b"\n"):
        return b""
    return frame[start + len(b"event:") : frame.find(b"\n", start)].strip()


def has_own_name(frame: bytes) -> bool:
    """Return whether a frame has an event of the provider's own, such as a ping."""
    name = find_event(frame)
    return name not in _EVENTS and not name.startswith(b"response.")


def parse_data(data: bytes) -> dict[str, Any]:
    """Return the object in the data of a frame, or in an array there, as Google has errors.

    It is empty for other JSON. StreamBroken if it is no JSON.
    """
    try:
        return as_document(provider_json.load(data))
    except ValueError as error:
        raise StreamBroken("A frame of the provider is not JSON.") from error


def as_document(document: Any) -> dict[str, Any]:
    """Return the object that is the value of a frame, or the first in it; empty for other JSON."""
    return as_object(document[0] if isinstance(document, list) and document else document)


def data_frame(document: dict[str, Any]) -> bytes:
    """Return a frame of a chat or Google stream."""
    return b"data: %b\n\n" % orjson.dumps(document)


def event_frame(document: dict[str, Any]) -> bytes:
    """Return a frame of a Responses stream, named by its `type`."""
    kind = str(document.get("type")).encode()
    return b"event: %b\ndata: %b\n\n" % (kind, orjson.dumps(document))


def retry_info(seconds: int) -> dict[str, str]:
    """Return the detail of Google's errors that says when to call again."""
    return {
        "@type": "type.googleapis.com/google.rpc.RetryInfo",
        "retryDelay": f"{seconds}s",
    }


def _check_lengths(block: bytes) -> None:
    if max(map(len, block.split(b"\n\n"))) + 2 > MOST_FRAME_BYTES:
        raise _too_long()


def _too_long() -> StreamBroken:
    return StreamBroken(f"A frame of the provider has more than {MOST_FRAME_BYTES} bytes.")
