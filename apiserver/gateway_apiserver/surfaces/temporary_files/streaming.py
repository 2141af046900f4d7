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
    """The text is not base64; the message is for the client."""


class Base64Decoder:
    """Decodes base64, or a data: URL of it, in pieces; ignores whitespace."""

    def __init__(self) -> None:
        self._carry = b""
        self._begun = False
        self._padded = False

    def decode(self, piece: bytes) -> bytes:
        """Return the bytes of the next piece. BadBase64."""
        text = self._carry + piece.translate(None, _WHITESPACE)
        self._carry = b""
        if not self._begun:
            text = self._cut_header(text)
        whole = len(text) - len(text) % 4
        self._carry = text[whole:]
        return self._convert(text[:whole])

    def finish(self) -> bytes:
        """Return the last bytes, after all pieces. BadBase64."""
        left, self._carry = self._carry, b""
        # four characters that might have begun a data URL
        if len(left) % 4 or (len(left) > 4 and not self._begun):
            raise BadBase64("is not valid base64")
        return self._convert(left)

    def _cut_header(self, text: bytes) -> bytes:
        """Return the text after a data URL's header; nothing until the header is complete."""
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


MOST_KEPT_BYTES = 64 * 1024
"""A body up to this size is parsed whole; of a larger one, this much may stand beside the file."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A string of JSON, or the beginning of one that the end of the text cuts."""
_UNITS = re.compile(rb'(?:[^"\\]++|\\u[0-9A-Fa-f]{4}|\\[^u])*+', re.DOTALL)
"""Characters and whole escapes of a string."""
_LONGEST_ESCAPE = len(rb"\uFFFF")
_CONTROL = re.compile(rb"[\x00-\x1f]")


class LongBody:
    """Reads `chunks` once. In `kept`, `marker` stands for the long string, if there is one."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._begun = b""
        """What was read after the opening quote of the long string."""
        self.kept = b""
        self.marker = secrets.token_hex(16)

    async def find_long(self) -> bool:
        """Read a short body to its end, else to its longest string so far. TooLarge."""
        read = b""
        async for chunk in self._chunks:
            read += chunk
            if len(read) > MOST_KEPT_BYTES:
                break
        else:
            self.kept = read
            return False
        longest = max(_STRING.finditer(read), key=lambda found: len(found[0]), default=None)
        if longest is None:
            raise _too_large()
        self.kept = read[: longest.start()] + b'"%b"' % self.marker.encode()
        self._begun = read[longest.start() + 1 :]
        return True

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the content of the long string; then read the rest of the body.

        Raises InvalidRequest, TooLarge.
        """
        piece = self._begun
        while True:
            units = _UNITS.match(piece)
            assert units is not None, "it may be empty"
            if units[0]:
                yield _unescape(units[0])
            piece = piece[units.end() :]
            if piece.startswith(b'"'):
                break
            # an escape that the end of the chunk cuts
            chunk = await anext(self._chunks, b"")
            if len(piece) >= _LONGEST_ESCAPE or not chunk:
                raise _malformed()
            piece += chunk
        self._keep(piece[1:])
        async for chunk in self._chunks:
            self._keep(chunk)

    def _keep(self, part: bytes) -> None:
        self.kept += part
        if len(self.kept) > MOST_KEPT_BYTES:
            raise _too_large()


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


class Head:
    """The first bytes of a stream, from which its media type is found."""

    def __init__(self) -> None:
        self.bytes = b""

    def note(self, chunk: bytes) -> None:
        """Keep the part of a chunk that belongs to the head."""
        if len(self.bytes) < HEAD_BYTES:
            self.bytes += chunk[: HEAD_BYTES - len(self.bytes)]


UNKNOWN = "application/octet-stream"
_SURE = 0.4
"""Of puremagic's confidence: a magic number of four bytes or more, or a shorter one that fits the
name."""


def find_media_type(head: bytes, filename: str) -> str:
    """Return the type of a file that begins with `head`."""
    try:
        matches = puremagic.magic_string(head, filename)
    except (puremagic.PureError, ValueError):
        matches = []
    for match in matches:
        if match.mime_type and match.confidence >= _SURE:
            return str(match.mime_type)
    return mimetypes.guess_type(filename, strict=False)[0] or UNKNOWN
