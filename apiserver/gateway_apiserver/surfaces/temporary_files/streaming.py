"""Base64 content streamed out of a JSON body, and its media type (contract §2.5).

A file of 50 MiB arrives as a string of 70 MB; parsed whole it would take three times that.
"""

import binascii
import mimetypes
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator

import orjson
import puremagic

from gateway_core.api.errors import InvalidRequest, TooLarge

_WHITESPACE = b" \t\r\n\f\v"
_SCHEME = b"data:"
MOST_HEADER = 1024


class BadBase64(ValueError):
    """The text is none; the message is for the client."""


class Base64Decoder:
    """Pieces of the text in, bytes out; whitespace is passed over."""

    def __init__(self) -> None:
        self._carry = b""
        self._begun = False
        self._padded = False

    def decode(self, piece: bytes) -> bytes:
        """The bytes that are whole by now. BadBase64."""
        text = self._carry + piece.translate(None, _WHITESPACE)
        self._carry = b""
        if not self._begun:
            text = self._cut_header(text)
        whole = len(text) - len(text) % 4
        self._carry = text[whole:]
        return self._convert(text[:whole])

    def finish(self) -> bytes:
        """The last bytes, once all pieces were given. BadBase64."""
        left, self._carry = self._carry, b""
        # four characters that might have begun a data URL
        if len(left) % 4 or (len(left) > 4 and not self._begun):
            raise BadBase64("is not valid base64")
        return self._convert(left)

    def _cut_header(self, text: bytes) -> bytes:
        """The text behind a data URL's header; nothing while that is not known."""
        if text[:5].lower() != _SCHEME[: len(text[:5])]:
            self._begun = True
            return text
        header, comma, rest = text.partition(b",")
        if comma:
            if not header.lower().endswith(b";base64"):
                raise BadBase64("is a data URL that is not of base64")
            self._begun = True
            return rest
        if len(text) > MOST_HEADER:
            raise BadBase64("is not valid base64")
        self._carry = text
        return b""

    def _convert(self, text: bytes) -> bytes:
        if not text:
            return b""
        if self._padded:
            raise BadBase64("is not valid base64")
        self._padded = text.endswith(b"=")
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except binascii.Error:
            raise BadBase64("is not valid base64") from None


LONG_CHARACTERS = 16 * 1024
"""From so many on a string is long."""
MOST_KEPT_BYTES = 64 * 1024

_SPECIAL = re.compile(rb'["\\]')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_CUT_ESCAPE = re.compile(rb"\\(?:u[0-9A-Fa-f]{0,3})?\Z")


class LongBody:
    """Reads `chunks` once. In `kept`, `marker` stands for the long string, if there is one."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._kept = bytearray()
        self._begin = -1
        """Where in `_kept` the string begins that is being read, -1 between strings."""
        self._escaped = False
        self._rest = b""
        self._streamed = False
        self.marker = secrets.token_hex(16)

    @property
    def kept(self) -> bytes:
        """The body as it was read so far, without the long string."""
        return bytes(self._kept)

    async def find_long(self) -> bool:
        """Reads to the beginning of a long string, or to the end. TooLarge."""
        async for chunk in self._chunks:
            if self._take(chunk):
                return True
        return False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """What the long string says, then reads the body to its end. InvalidRequest, TooLarge."""
        self._streamed = True
        head = bytes(self._kept[self._begin + 1 :])
        del self._kept[self._begin :]
        self._kept += b'"' + self.marker.encode()
        carry = b""
        piece, ended = self._cut_end(head, self._rest)
        while True:
            text, carry = _split_escape(carry + piece)
            if text:
                yield _unescape(text)
            if ended:
                break
            piece, ended = self._cut_end(b"", await anext(self._chunks, b""))
            if not piece and not ended:
                raise _malformed()
        if carry:
            raise _malformed()
        self._begin = -1
        self._kept += b'"'
        rest, self._rest = self._rest, b""
        self._take(rest)
        async for chunk in self._chunks:
            self._take(chunk)

    def _take(self, chunk: bytes) -> bool:
        """Keeps the chunk; True from where a string becomes long, the rest left over."""
        position = 0
        while position < len(chunk):
            if self._begin < 0:
                quote = chunk.find(b'"', position)
                end = len(chunk) if quote < 0 else quote + 1
                self._keep(chunk[position:end])
                if quote >= 0:
                    self._begin = len(self._kept) - 1
                position = end
                continue
            end, closed = self._find_end(chunk, position)
            room = LONG_CHARACTERS - (len(self._kept) - self._begin)
            if end - position > room and not self._streamed:
                # the escape state is that of the whole piece, which is cut again by `stream`
                self._escaped = False
                self._rest = chunk[position:]
                self._mend_escape()
                return True
            self._keep(chunk[position:end])
            if closed:
                self._begin = -1
            position = end
        return False

    def _mend_escape(self) -> None:
        """An escape that the last chunk has cut goes on in the rest."""
        text = bytes(self._kept[self._begin + 1 :])
        slashes = len(text) - len(text.rstrip(b"\\"))
        if slashes % 2:
            del self._kept[-1:]
            self._rest = b"\\" + self._rest

    def _cut_end(self, head: bytes, chunk: bytes) -> tuple[bytes, bool]:
        """What of the long string is in `head` and `chunk`, and whether it ends there."""
        end, closed = self._find_end(chunk, 0)
        if closed:
            self._rest = chunk[end:]
            return head + chunk[: end - 1], True
        return head + chunk, False

    def _find_end(self, chunk: bytes, position: int) -> tuple[int, bool]:
        """Behind the string's closing quote, or the chunk's end, and which of these it is."""
        if self._escaped and position < len(chunk):
            self._escaped = False
            position += 1
        while True:
            found = _SPECIAL.search(chunk, position)
            if found is None:
                return len(chunk), False
            if found[0] == b'"':
                return found.end(), True
            position = found.end() + 1
            if position > len(chunk):
                self._escaped = True
                return len(chunk), False

    def _keep(self, part: bytes) -> None:
        self._kept += part
        if len(self._kept) > MOST_KEPT_BYTES:
            raise _too_large()


def _split_escape(piece: bytes) -> tuple[bytes, bytes]:
    """The piece up to an escape that it cuts, and the rest. A pair of slashes is no cut."""
    cut = _CUT_ESCAPE.search(piece)
    if cut is None:
        return piece, b""
    slashes = len(piece[: cut.start() + 1]) - len(piece[: cut.start() + 1].rstrip(b"\\"))
    return (piece[: cut.start()], piece[cut.start() :]) if slashes % 2 else (piece, b"")


def _unescape(piece: bytes) -> bytes:
    if _CONTROL.search(piece):
        raise _malformed()
    if b"\\" not in piece:
        return piece
    try:
        text: str = orjson.loads(b'"' + piece + b'"')
    except orjson.JSONDecodeError:
        raise _malformed() from None
    return text.encode()


def _malformed() -> InvalidRequest:
    return InvalidRequest("The body is not valid JSON.", code="invalid_json")


def _too_large() -> TooLarge:
    return TooLarge("The body is too large: only `source.data` may be long.")


HEAD_BYTES = 4096
UNKNOWN = "application/octet-stream"
_SURE = 0.4
"""Of puremagic's confidence: a magic number of four bytes or more, or a shorter one that fits the
name."""


def find_media_type(head: bytes, filename: str) -> str:
    """The type of a file that begins with `head`."""
    try:
        matches = puremagic.magic_string(head, filename)
    except (puremagic.PureError, ValueError):
        matches = []
    for match in matches:
        if match.mime_type and match.confidence >= _SURE:
            return str(match.mime_type)
    return mimetypes.guess_type(filename, strict=False)[0] or UNKNOWN
