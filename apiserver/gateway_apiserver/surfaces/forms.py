"""Multipart forms with one file, whose bytes are streamed and never collected.

Fields may stand before the file or after it (contract §3.1), so they are complete only at the end.
python-multipart finds the boundaries; this module interprets the parts.
"""

import re
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway_apiserver.surfaces.validation import invalid
from gateway_core.api.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from gateway_web.context import Header
from gateway_web.middleware.bodies import is_encoding

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_TYPE = "multipart/form-data"
MOST_ENVELOPE_BYTES = 1024 * 1024
"""Of a body, all that is not the file."""
MOST_FIELD_BYTES = 64 * 1024
MOST_PARTS = 64
_MOST_HEADER_BYTES = 16 * 1024
_MOST_BOUNDARY_BYTES = 200
_PLAIN_ENCODINGS = ("", "7bit", "8bit", "binary")
_PARAMETER = re.compile(r';\s*([^\s=;"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_EXTENDED = re.compile(r"(utf-8|iso-8859-1)'[^']*'(.*)", re.DOTALL | re.IGNORECASE)


class Form:
    """A form being read: `find_file`, then `stream` to the end; `fields` grow on the way.

    `file_field` is the name of the one part that is a file; `is_named`: it must have a `filename`.
    Of the other parts those named in `known` are kept, the rest is ignored (§0.2).
    """

    def __init__(
        self,
        headers: Sequence[Header],
        receive: Receive,
        file_field: str,
        *,
        known: Collection[str] = (),
        is_named: bool = True,
    ) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._receive = receive
        self._file_field = file_field
        self._known = known
        self._is_named = is_named
        self._chunks: list[bytes] = []
        self._has_file = False
        self._body_ended = False
        self._form_ended = False
        self._envelope = 0
        self._parts = 0
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[str, bytes] = {}
        self._name = ""
        self._field: bytearray | None = None
        """Content of the current part, None if it is the file."""
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_header_name,
            "on_header_value": self._add_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_content,
            "on_part_data": self._add_content,
            "on_part_end": self._end_part,
            "on_end": self._end_form,
        }
        self._parser = MultipartParser(
            _read_boundary(headers), callbacks, max_header_size=_MOST_HEADER_BYTES
        )

    async def find_file(self) -> bool:
        """Read to the beginning of the file; False if the form has none.

        Raises InvalidRequest, TooLarge or ClientDisconnect.
        """
        while not self._has_file and not self._body_ended:
            await self._read()
        if not self._has_file:
            self._check_end()
        return self._has_file

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the file's bytes; ends once the whole form was read and is valid.

        Raises InvalidRequest, TooLarge or ClientDisconnect.
        """
        while True:
            if self._chunks:
                data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                yield data
            elif self._body_ended:
                break
            else:
                await self._read()
        self._check_end()

    async def _read(self) -> None:
        """Read the next chunk of the body."""
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        data: bytes = message.get("body", b"")
        self._body_ended = not message.get("more_body", False)
        self._envelope += len(data)
        if data and not self._form_ended:
            try:
                self._parser.write(data)
            except FormParserError:
                text = "The body is not the multipart form that it says it is."
                raise InvalidRequest(text) from None
            self._envelope -= sum(map(len, self._chunks))
        if self._envelope > MOST_ENVELOPE_BYTES:
            raise TooLarge(f"A form may have at most {MOST_ENVELOPE_BYTES} bytes beside its file.")

    def _check_end(self) -> None:
        if not self._form_ended:
            raise InvalidRequest("The multipart form is not complete.")

    # callbacks of the parser

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(f"A form may have at most {MOST_PARTS} parts.")
        self._headers = {}

    def _add_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        if name in self._headers:
            raise InvalidRequest("A part of the form has a header twice.")
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _begin_content(self) -> None:
        disposition, parameters = _read_disposition(self._headers.get("content-disposition", b""))
        name = parameters.get("name")
        if disposition != "form-data" or name is None:
            raise InvalidRequest("A part of the form does not say which field it is.")
        encoding = self._headers.get("content-transfer-encoding", b"").decode("latin-1")
        if encoding.strip().lower() not in _PLAIN_ENCODINGS:
            raise invalid(name, "must come as it is, without a transfer encoding")
        self._name, self._field = name, bytearray()
        if name == self._file_field:
            self._begin_file(name, parameters.get("filename"))

    def _begin_file(self, name: str, filename: str | None) -> None:
        if self._has_file:
            raise invalid(name, "must be given once")
        if filename is None and self._is_named:
            raise invalid(name, "must be a file: a part with a filename")
        self._has_file, self._field, self.filename = True, None, filename

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._chunks.append(data[start:end])
            return
        self._field += data[start:end]
        if len(self._field) > MOST_FIELD_BYTES:
            raise TooLarge(f"A field may have at most {MOST_FIELD_BYTES} bytes.")

    def _end_part(self) -> None:
        name, field = self._name, self._field
        self._field = None
        if field is None or name not in self._known:
            return
        if name in self.fields:
            raise invalid(name, "must be given once")
        try:
            self.fields[name] = field.decode()
        except UnicodeDecodeError:
            raise invalid(name, "must be UTF-8") from None

    def _end_form(self) -> None:
        self._form_ended = True


def _read_boundary(headers: Sequence[Header]) -> bytes:
    """Return the boundary of a form's parts. UnsupportedMediaType, InvalidRequest."""
    content_type = b""
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-encoding" and is_encoding(value):
            raise UnsupportedMediaType(FORM_TYPE, is_encoded=True)
    media_type, parameters = parse_options_header(content_type)
    if media_type != FORM_TYPE.encode():
        raise UnsupportedMediaType(FORM_TYPE)
    boundary = parameters.get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MOST_BOUNDARY_BYTES:
        raise InvalidRequest("Content-Type must name the boundary of the form's parts.")
    return boundary


def _read_disposition(value: bytes) -> tuple[str, dict[str, str]]:
    """Return a Content-Disposition: its first word, and its parameters.

    `filename*` goes first (§3.3).
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    word, semicolon, rest = text.partition(";")
    parameters: dict[str, str] = {}
    for match in _PARAMETER.finditer(semicolon + rest):
        raw = match[2].strip()
        if raw.startswith('"'):
            raw = _ESCAPED.sub(r"\1", raw[1:-1])
        parameters.setdefault(match[1].lower(), raw)
    extended = _read_extended(parameters.pop("filename*", None))
    if extended is not None:
        parameters["filename"] = extended
    return word.strip().lower(), parameters


def _read_extended(value: str | None) -> str | None:
    """Return the text of RFC 5987's form, None where it is none."""
    match = _EXTENDED.fullmatch(value or "")
    if match is None:
        return None
    try:
        return unquote_to_bytes(match[2]).decode(match[1])
    except UnicodeDecodeError:
        return None
