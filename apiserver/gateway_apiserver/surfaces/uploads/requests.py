"""What clients send to Uploads, field by field (contract §4.1, §4.3)."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway_apiserver.surfaces.bodies import (
    invalid,
    missing,
    take_life,
    take_optional_text,
    take_text,
    take_whole,
    take_word,
    wrong_type,
)
from gateway_core.api.errors import InvalidRequest, TooLarge
from gateway_core.api.upload import MOST_PARTS
from gateway_core.files.files import PURPOSES, Purpose, clean_filename, find_life
from gateway_core.files.uploads import MOST_BYTES

_HEX = re.compile(r"[0-9a-fA-F]{32}")
LONGEST_TYPE = 255


@dataclass(frozen=True, slots=True)
class WantedUpload:
    """An Upload that is asked for. `life` is that of its File in seconds, None as purposes go."""

    purpose: Purpose
    filename: str
    media_type: str
    bytes: int
    life: int | None

    @property
    def fingerprint(self) -> str:
        """Digest of what was asked for, to tell a replay (§2.2)."""
        # a life that is told and is the purpose's own is the same as none
        life = find_life(self.purpose, self.life)
        values = [self.purpose, self.filename, self.media_type, self.bytes, life]
        return hashlib.sha256(orjson.dumps(values)).hexdigest()


@dataclass(frozen=True, slots=True)
class WantedCompletion:
    """The parts in their order, and the MD5 that they have together; None if nobody says."""

    part_ids: tuple[str, ...]
    md5: bytes | None


def read_upload(body: Mapping[str, Any]) -> WantedUpload:
    """The body of a create. InvalidRequest; TooLarge, `file_too_large`."""
    size = take_whole(body, "bytes", least=1)
    filename = take_text(body, "filename")
    media_type = take_text(body, "mime_type", most=LONGEST_TYPE)
    word = take_word(body, "purpose", PURPOSES)
    purpose: Purpose = "batch" if word == "batch" else "user_data"
    life = take_life(body)
    if size > MOST_BYTES[purpose]:
        raise TooLarge(
            f"A file of this purpose may have at most {MOST_BYTES[purpose]} bytes.",
            code="file_too_large",
            param="bytes",
        )
    return WantedUpload(purpose, clean_filename(filename), media_type, size, life)


def read_completion(body: Mapping[str, Any]) -> WantedCompletion:
    """The body of a completion. InvalidRequest; `duplicate_part` for an id that is there twice."""
    ids = body.get("part_ids")
    if ids is None:
        raise missing("part_ids")
    if not isinstance(ids, list) or not all(isinstance(part_id, str) for part_id in ids):
        raise wrong_type("part_ids", "an array of strings")
    if not 1 <= len(ids) <= MOST_PARTS:
        raise invalid("part_ids", f"must have 1 to {MOST_PARTS} items")
    if not all(ids):
        raise invalid("part_ids", "must not have empty items")
    if len(set(ids)) < len(ids):
        raise InvalidRequest("A part is listed twice.", code="duplicate_part", param="part_ids")
    text = take_optional_text(body, "md5")
    return WantedCompletion(tuple(ids), None if text is None else read_md5(text))


def read_md5(text: str) -> bytes:
    """The digest in 32 hexadecimal digits or 24 characters of base64. InvalidRequest."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    try:
        digest = base64.b64decode(text, validate=True) if len(text) == 24 else b""
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != 16:
        raise invalid("md5", "must be 32 hexadecimal digits, or 24 characters of base64")
    return digest
