"""Files: their limits, their names, how long they live, and what clients are told of them. Pure.

Used by every surface that makes or shows one (contract §3; uploads and batches make some as well).
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any, Literal

from gateway_core.contract.names import name_to_id

USER_DATA_BYTES = 52_428_800
DIRECT_BATCH_BYTES = 95_000_000
SHORTEST_SECONDS = 3600
LONGEST_SECONDS = 2_592_000
MOST_NAME_BYTES = 255

Purpose = Literal["user_data", "batch"]
PURPOSES: tuple[Purpose, ...] = ("user_data", "batch")
"""What a client may make; `batch_output` is the gateway's alone."""
SHOWN_PURPOSES = (*PURPOSES, "batch_output")
DIRECT_LIMITS: Mapping[Purpose, int] = {
    "user_data": USER_DATA_BYTES,
    "batch": DIRECT_BATCH_BYTES,
}
"""Bytes of one that is made by one request (§3.2)."""
_DEFAULT_SECONDS: Mapping[Purpose, int] = {"batch": LONGEST_SECONDS}


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What is told of a file. Times are Unix seconds; `expires_at` None for never."""

    name: str
    account: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int | None

    def is_gone(self, now: float) -> bool:
        """Whether its life is over by the clock; the operator removes it when it comes to it."""
        return self.expires_at is not None and now >= self.expires_at


def read_file(obj: Mapping[str, Any]) -> FileRecord | None:
    """The record of a GatewayFile; None of one that is being deleted."""
    meta, request = obj["metadata"], obj["spec"]["request"]
    if meta.get("deletionTimestamp"):
        return None
    return FileRecord(
        name=meta["name"],
        # a process holds one of these for every file: what is alike is held once
        account=intern(request["accountName"]),
        purpose=intern(request["purpose"]),
        filename=request["filename"],
        bytes=request["bytes"],
        created_at=_read_seconds(meta["creationTimestamp"]),
        expires_at=find_expiry(obj),
    )


def find_expiry(obj: Mapping[str, Any]) -> int | None:
    """From when on a GatewayFile is gone, in Unix seconds; None for never.

    Counted from the creation where a life was asked for, so that it is that life exactly (§3.1).
    """
    request = obj["spec"]["request"]
    life = request.get("expiresAfterSeconds")
    if life is not None:
        return _read_seconds(obj["metadata"]["creationTimestamp"]) + int(life)
    text = request.get("expirationTime")
    return None if text is None else _read_seconds(text)


def find_life(purpose: Purpose, asked: int | None) -> int | None:
    """Seconds that a file lives: as asked for, else by its purpose; None for ever (§3.1)."""
    return _DEFAULT_SECONDS.get(purpose) if asked is None else asked


def render_file(record: FileRecord) -> dict[str, Any]:
    """The File object (§3, annex B.1). Nothing is processed later, so it always is `processed`."""
    return {
        "id": name_to_id(record.name),
        "object": "file",
        "bytes": record.bytes,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def clean_filename(text: str) -> str:
    """The last part of a path, without control characters, of at most 255 bytes (§3.3).

    `file` where nothing is left of it.
    """
    last = text.replace("\\", "/").rpartition("/")[2]
    kept = "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cs")).strip()
    short = kept.encode()[:MOST_NAME_BYTES].decode(errors="ignore").strip()
    return short if short not in ("", ".", "..") else "file"


def _read_seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
