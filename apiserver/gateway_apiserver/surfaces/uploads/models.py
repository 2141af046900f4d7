"""Bodies and responses of Uploads (contract §4.1, §4.3, annex B.1)."""

import base64
import binascii
import hashlib
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, ConfigDict, Field

from gateway_apiserver.surfaces.files.models import File
from gateway_apiserver.surfaces.models import (
    HEX_MD5,
    Count,
    ExpiresAfter,
    FieldProblem,
    Lenient,
    Shape,
    Text,
    Whole,
    Word,
)
from gateway_core.api.errors import TooLarge
from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.upload import MOST_PARTS
from gateway_core.files.files import Purpose, clean_filename, find_life
from gateway_core.files.uploads import (
    MOST_BYTES,
    UploadStatus,
    read_creation,
    read_expiry,
    read_status,
)

_DIGEST = "^([0-9a-fA-F]{32}|[A-Za-z0-9+/]{22}==)$"
PART_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary", "minLength": 1}},
}
"""The multipart form of a part."""
UploadId = Annotated[str, Field(pattern="^upload_[a-z2-7]{26}$")]


def _refuse_repeats(ids: list[str]) -> list[str]:
    if len(set(ids)) < len(ids):
        raise FieldProblem("must not list a part twice", code="duplicate_part")
    return ids


def _check_md5(text: str) -> str:
    if len(_decode_md5(text)) != 16:
        raise ValueError("must be 32 hexadecimal digits, or 24 characters of base64")
    return text


def _decode_md5(text: str) -> bytes:
    if HEX_MD5.fullmatch(text):
        return bytes.fromhex(text)
    try:
        return base64.b64decode(text, validate=True) if len(text) == 24 else b""
    except (binascii.Error, ValueError):
        return b""


def _limit_bytes(schema: dict[str, Any]) -> None:
    """Add the size limit of each purpose to the schema."""
    schema["oneOf"] = [
        {"properties": {"purpose": {"const": name}, "bytes": {"maximum": most}}}
        for name, most in MOST_BYTES.items()
    ]


class UploadCreate(Lenient):
    """The body of a create."""

    model_config = ConfigDict(json_schema_extra=_limit_bytes)

    bytes: Annotated[int, Field(ge=1), Whole]
    filename: Text
    mime_type: Annotated[Text, Field(max_length=255)]
    purpose: Annotated[Purpose, Word]
    expires_after: ExpiresAfter | None = None

    def check_size(self) -> None:
        """Raise TooLarge for more bytes than a file of the purpose may have."""
        most = MOST_BYTES[self.purpose]
        if self.bytes > most:
            raise TooLarge(
                f"A file of this purpose may have at most {most} bytes.",
                code="file_too_large",
                param="bytes",
            )

    @property
    def life(self) -> int | None:
        """Seconds that the File lives, None for the purpose's default."""
        return None if self.expires_after is None else self.expires_after.seconds

    @property
    def stored_name(self) -> str:
        """The filename as it is stored."""
        return clean_filename(self.filename)

    @property
    def fingerprint(self) -> str:
        """Digest of the request, to recognise a replay (§2.2)."""
        # an explicit life equal to the purpose's default is the same as none
        life = find_life(self.purpose, self.life)
        values = [self.purpose, self.stored_name, self.mime_type, self.bytes, life]
        return hashlib.sha256(orjson.dumps(values)).hexdigest()


class UploadComplete(Lenient):
    """The parts in order, and the MD5 of the whole."""

    part_ids: Annotated[
        list[Text],
        Field(
            min_length=1,
            max_length=MOST_PARTS,
            description="In the order that their bytes are to have.",
            json_schema_extra={"uniqueItems": True},
        ),
        AfterValidator(_refuse_repeats),
    ]
    md5: (
        Annotated[
            Text,
            Field(
                description="Of the whole file, in hexadecimal digits or base64.",
                json_schema_extra={"pattern": _DIGEST},
            ),
            AfterValidator(_check_md5),
        ]
        | None
    ) = None

    @property
    def digest(self) -> bytes | None:
        """The MD5, None if the client sent none."""
        return None if self.md5 is None else _decode_md5(self.md5)


class Upload(Shape):
    """An Upload; its File once it is completed."""

    id: UploadId
    object: Literal["upload"]
    bytes: Annotated[int, Field(ge=1)]
    created_at: Count
    expires_at: Count
    filename: Text
    purpose: Purpose
    status: UploadStatus
    file: File | None


class UploadPart(Shape):
    """A part."""

    id: Annotated[str, Field(pattern="^part_[a-z2-7]{26}$")]
    object: Literal["upload.part"]
    created_at: Count
    upload_id: UploadId


def render_upload(obj: Object, file: File | None = None) -> Upload:
    """Return the Upload of a GatewayUpload, with its File once it is completed (annex B.1)."""
    request = obj["spec"]["request"]
    return Upload(
        id=name_to_id(obj["metadata"]["name"]),
        object="upload",
        bytes=request["bytes"],
        created_at=read_creation(obj),
        expires_at=read_expiry(obj),
        filename=request["filename"],
        purpose=request["purpose"],
        status=read_status(obj),
        file=file,
    )


def render_part(part_id: str, upload_name: str, now: float) -> UploadPart:
    """Return a part that was stored now."""
    return UploadPart(
        id=part_id,
        object="upload.part",
        created_at=int(now),
        upload_id=name_to_id(upload_name),
    )
