"""Base64 that arrives in pieces, raw or as a `data:` URL (contract §2.5)."""

import binascii

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
