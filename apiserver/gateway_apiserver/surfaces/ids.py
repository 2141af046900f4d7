"""Ids in paths, bodies and cursors: a guess is a 404 before anything is looked up (§0.4, §0.5)."""

from gateway_core.api.errors import NotFound
from gateway_core.api.ids import (
    BATCH_PREFIX,
    FILE_PREFIX,
    PART_PREFIX,
    UPLOAD_PREFIX,
    IdMint,
    Ownership,
    id_to_name,
)

_NOUNS = {
    FILE_PREFIX: "File",
    UPLOAD_PREFIX: "Upload",
    PART_PREFIX: "Part",
    BATCH_PREFIX: "Batch",
}


def unknown(prefix: str, wire_id: str, *, param: str | None = None) -> NotFound:
    """No such thing, or another account's: `file_not_found` and the like."""
    shown = wire_id if len(wire_id) <= 64 else f"{wire_id[:61]}..."
    noun = _NOUNS[prefix]
    return NotFound(f"No such {noun} object: {shown}", code=f"{prefix}_not_found", param=param)


def check_id(
    mint: IdMint, prefix: str, account: str, wire_id: str, *, param: str | None = None
) -> str:
    """The object's name, of an id that was made for `account`. NotFound for every other."""
    if mint.check(prefix, account, wire_id) is not Ownership.MINTED:
        raise unknown(prefix, wire_id, param=param)
    return id_to_name(wire_id)
