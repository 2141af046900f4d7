"""Bodies and responses of temporary files (contract §2.5)."""

import base64
import binascii
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from gateway_apiserver.surfaces.models import Creation, Shape, Text, Whole
from gateway_apiserver.surfaces.validation import refuse_fields, validate
from gateway_core.api.errors import InvalidRequest
from gateway_core.files.files import USER_DATA_BYTES, clean_filename
from gateway_core.tasks.operations import MAX_URL
from gateway_core.tasks.schemas import close_schema, describe_public_url

MD5_BYTES = 16
_DATA = {
    "type": "string",
    "pattern": "^([A-Za-z0-9+/]{4})+$",
    "description": "Base64, or a data: URL of it; whitespace in it is passed over.",
}
_SOURCE = {
    "oneOf": [
        close_schema({"type": {"const": "url"}, "url": describe_public_url()}),
        close_schema({"type": {"const": "base64"}, "data": _DATA}),
    ]
}


def _check_source(source: dict[str, Any]) -> dict[str, Any]:
    kind = source.get("type")
    if kind not in ("url", "base64"):
        raise ValueError("must have the type url or base64")
    field = "url" if kind == "url" else "data"
    value = source.get(field)
    unknown = sorted(name for name in source if name not in {"type", field})
    if unknown:
        raise ValueError(f"has the unknown field {unknown[0]}")
    if not isinstance(value, str) or not value:
        raise ValueError(f"must have a {field}, which is a text")
    if kind == "url":
        _check_url(value)
    return source


def _check_url(url: str) -> None:
    if len(url) > MAX_URL:
        raise ValueError(f"must have a url of at most {MAX_URL} characters")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError("must have an absolute http or https URL")


def _check_digest(text: str) -> str:
    digest = b""
    with suppress(binascii.Error, ValueError):
        digest = base64.b64decode(text, validate=True)
    if len(digest) != MD5_BYTES:
        raise ValueError("must be an MD5 digest of 16 bytes, in base64")
    return text


Filename = Annotated[str, Field(min_length=1, max_length=255)]


class TemporaryFileCreate(Creation):
    """A file from a URL or from base64."""

    source: Annotated[dict[str, Any], AfterValidator(_check_source), WithJsonSchema(_SOURCE)]
    file_name: Filename | None = None


class TemporaryFilePrepare(Creation):
    """A file to be put."""

    filename: Filename
    byte_size: Annotated[int, Field(ge=1, le=USER_DATA_BYTES), Whole]
    checksum: Annotated[
        str,
        AfterValidator(_check_digest),
        Field(
            description="The MD5 digest of the bytes, in base64.",
            json_schema_extra={"pattern": "^[A-Za-z0-9+/]{21}[AQgw]==$"},
        ),
    ]

    @property
    def md5(self) -> str:
        """The digest in hexadecimal digits."""
        return base64.b64decode(self.checksum).hex()


class TemporaryFileConfirm(Creation):
    """A file that was put."""

    signed_id: Text


class TemporaryFile(Shape):
    """A file that is kept for a day and read by its URL."""

    file_name: str
    url: str = Field(description="Whoever has it may read the file.")
    size_bytes: int
    mime_type: str = Field(description="By its first bytes, else by its name.")
    created_at: str
    expires_at: str


class PreparedFile(Shape):
    """Where to put a file's bytes."""

    upload_url: str = Field(description="For one PUT within 15 minutes, without a key.")
    headers: dict[str, str] = Field(description="To be sent with the PUT.")
    signed_id: str = Field(description="To confirm with, within the hour.")


@dataclass(frozen=True, slots=True)
class Source:
    """Source of the bytes: a URL, or base64, which may be the marker of `LongBody`."""

    url: str | None
    data: str | None
    filename: str


def read_source(body: dict[str, Any]) -> Source:
    """Return the source and the file's name. Raises InvalidRequest."""
    wanted = validate(TemporaryFileCreate, body)
    url, filename = wanted.source.get("url"), wanted.file_name
    if filename is None and url is not None:
        filename = unquote(urlsplit(url).path.rpartition("/")[2])
    return Source(url, wanted.source.get("data"), clean_filename(filename or ""))


def refuse_source(problem: str) -> InvalidRequest:
    """Return the error for a problem of the source's bytes."""
    return refuse_fields({"source": [problem]})
