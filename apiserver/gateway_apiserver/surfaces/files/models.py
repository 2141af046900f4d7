"""Queries and responses of Files (contract §3.4, annex B.1), and the form of a create."""

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_apiserver.surfaces.models import Count, Number, PageQuery, Shape, ShownPurpose, Text
from gateway_core.files.files import LONGEST_SECONDS, PURPOSES, SHORTEST_SECONDS

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


class File(Shape):
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
