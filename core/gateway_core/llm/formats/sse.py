"""Server-sent events of language models: frames from bytes, keep-alive and error frames."""

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_core.llm.formats.calls import Format, as_object

MOST_FRAME_BYTES = 1024 * 1024
DONE = b"data: [DONE]\n\n"
"""Last frame of a chat stream."""
_EVENTS = (b"", b"error", b"message")
"""Names of events of chat and Google streams."""
_DOCUMENTS = (b"{", b"[", b"<")
"""How JSON and HTML begin, and no line of a stream does."""
_STATUSES = {
    "image_content_policy_violation": 400,
    "invalid_api_key": 401,
    "invalid_image": 400,
    "invalid_prompt": 400,
    "rate_limit_exceeded": 429,
}
"""HTTP statuses that OpenAI's codes of errors stand for."""
_MOST_REFUSAL_BYTES = 8 * 1024
"""After so many bytes a first frame that is not whole yet is taken for no error."""


class StreamFailed(Exception):
    """A provider's stream cannot go on. `sent` has the frames for the client that preceded."""

    def __init__(self, message: str, sent: bytes = b"") -> None:
        super().__init__(message)
        self.message = message
        self.sent = sent


class StreamBroken(StreamFailed):
    """The stream ended early, has a frame that is too long, or is not of its format."""


class StreamError(StreamFailed):
    """The provider reported an error in the stream.

    `message` is the provider's own, to be redacted. `status` is an HTTP status, if it gave one.
    """

    def __init__(self, message: str, code: str | None, status: int | None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """An error in the words of both formats (§1.2): HTTP status, OpenAI's and Google's names."""

    message: str
    status: int
    openai_type: str
    code: str
    google_status: str


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
        """The frames that `data` completes, each with the blank line that ends it."""
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
        """What is left at the end of the stream, as a frame; servers may omit its blank line."""
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
    """The single frames of complete ones, each with its blank line."""
    for frame in block.split(b"\n\n"):
        stripped = frame.lstrip(b"\n")
        if stripped:
            yield stripped + b"\n\n"


def read_data(frame: bytes) -> bytes:
    """The joined `data` lines of a frame; empty for comments and frames of other fields alone."""
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
    """The object in the data of a frame, or in an array there, as Google has errors.

    It is empty for other JSON. StreamBroken if it is no JSON.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StreamBroken("A frame of the provider is not JSON.") from error
    return as_object(document[0] if isinstance(document, list) and document else document)


def find_error(document: dict[str, Any]) -> StreamError | None:
    """The error that a frame reports, in any of the forms of both formats and their relatives."""
    error = document.get("error")
    if document.get("type") == "error":
        error = error or document
    if not error:
        return None
    if not isinstance(error, dict):
        return StreamError(str(error), None, None)
    code = error.get("code")
    status = code if type(code) is int and 400 <= code <= 599 else None
    name = code if isinstance(code, str) else error.get("status") or error.get("type")
    return StreamError(
        str(error.get("message") or ""), name if isinstance(name, str) else None, status
    )


def begins_stream(data: bytes) -> bool:
    """Whether a provider's first bytes are a usual frame, so surely no error (`find_refusal`)."""
    if not (data.count(b"\n\n") or data.count(b"\r\n\r\n")):
        return False
    if data.startswith(b"data: {"):
        return not data.count(b'"error"')
    return data.startswith(b"event: response.") and not data.startswith(b"event: response.failed")


def shows_refusal(data: bytes) -> bool:
    """Whether the first bytes are enough for `find_refusal` to decide.

    Not yet while only comments, or a part of a frame or of a document, have come.
    """
    if len(data) > _MOST_REFUSAL_BYTES or begins_stream(data):
        return True
    if not data.startswith(_DOCUMENTS):
        return any(map(read_data, split_frames(FrameSplitter().feed(data))))
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def find_refusal(data: bytes) -> StreamError | None:
    """The error that the first bytes of a provider's response report instead of a stream.

    A whole document, as of a provider that knows no streams, is one too, and a first frame that
    cannot be read.
    """
    error: StreamError | None = None
    try:
        if data.startswith(_DOCUMENTS):
            error = StreamError("The provider's response is no stream.", None, None)
            found = orjson.loads(data)
            found = found[0] if isinstance(found, list) and found else found
            error = find_error(as_object(found)) or error
        else:
            frames = split_frames(FrameSplitter().feed(data))
            own = (frame for frame in frames if not has_own_name(frame))
            first = next(filter(None, map(read_data, own)), b"")
            if first and first != b"[DONE]":
                document = parse_data(first)
                if document.get("type") == "response.failed":
                    document = as_object(document.get("response"))
                error = find_error(document)
    except (StreamBroken, orjson.JSONDecodeError):
        error = error or StreamError("The provider's stream cannot be read.", None, None)
    if error is not None and error.status is None and error.code is not None:
        error.status = _STATUSES.get(error.code)
    return error


def data_frame(document: dict[str, Any]) -> bytes:
    """A frame of a chat or Google stream."""
    return b"data: %b\n\n" % orjson.dumps(document)


def event_frame(document: dict[str, Any]) -> bytes:
    """A frame of a Responses stream, named by its `type`."""
    kind = str(document.get("type")).encode()
    return b"event: %b\ndata: %b\n\n" % (kind, orjson.dumps(document))


def keep_alive(format_: Format) -> bytes:
    """What may be sent between frames while the provider is silent (§7.2, §8.5).

    A comment for OpenAI's clients; Google's fail at comments and skip empty lines.
    """
    return b"\n" if format_ is Format.GOOGLE else b": keep-alive\n\n"


def chat_error(form: ErrorForm) -> bytes:
    """The last frame of a chat stream that fails (§7.2)."""
    return data_frame({"error": _openai_error(form)})


def responses_error(form: ErrorForm, sequence_number: int) -> bytes:
    """The last frame of a Responses stream that fails, for both kinds of reader (§7.3)."""
    return event_frame(
        {
            "type": "error",
            "sequence_number": sequence_number,
            "code": form.code,
            "message": form.message,
            "param": None,
            "error": _openai_error(form),
        }
    )


def google_error(form: ErrorForm) -> dict[str, Any]:
    """The last chunk of a Google stream that fails (§8.6)."""
    return {"error": {"code": form.status, "message": form.message, "status": form.google_status}}


def _openai_error(form: ErrorForm) -> dict[str, Any]:
    return {
        "message": form.message,
        "type": form.openai_type,
        "param": None,
        "code": form.code,
    }


def _check_lengths(block: bytes) -> None:
    if max(map(len, block.split(b"\n\n"))) + 2 > MOST_FRAME_BYTES:
        raise _too_long()


def _too_long() -> StreamBroken:
    return StreamBroken(f"A frame of the provider has more than {MOST_FRAME_BYTES} bytes.")
