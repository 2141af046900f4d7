"""Queries and responses of Files (contract §3.4, annex B.1), and the form of a create."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from gateway_apiserver.surfaces.models import Count, Number, PageQuery, Shape, ShownPurpose, Text
from gateway_core.api.ids import name_to_id
from gateway_core.files.files import LONGEST_SECONDS, PURPOSES, SHORTEST_SECONDS, FileRecord

MOST_LISTED = 10_000
FileId = Annotated[str, Field(pattern="^file-[a-z2-7]{26}$")]

FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary", "minLength": 1},
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": SHORTEST_SECONDS,
            "maximum": LONGEST_SECONDS,
        },
    },
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
}
"""The multipart form, which `creation` validates while its bytes arrive."""


class FileQuery(PageQuery):
    """Which files."""

    limit: Annotated[int, Field(strict=True, ge=1, le=MOST_LISTED), Number] = MOST_LISTED
    purpose: ShownPurpose | None = None


# no model: a list has up to 10,000 of them, and to validate these takes 0.1 s of all requests
@dataclass(frozen=True, slots=True)
class File:
    """A file. Times are Unix seconds."""

    id: FileId
    object: Literal["file"]
    bytes: Count
    created_at: Count
    expires_at: int | None
    filename: Text
    purpose: ShownPurpose
    status: Literal["processed"]
    status_details: None


class DeletedFile(Shape):
    """Confirmation of a deletion."""

    id: FileId
    object: Literal["file"]
    deleted: Literal[True]


def render_file(record: FileRecord) -> File:
    """Return the File object (annex B.1). Files need no processing: the status is constant."""
    return File(
        id=name_to_id(record.name),
        object="file",
        bytes=record.bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=cast(ShownPurpose, record.purpose),
        status="processed",
        status_details=None,
    )
