"""Addresses of generated media: unguessable, good for 30 days, checked without a look-up.

The operator signs one at completion, the media host verifies it. An address
names the output and the task's uid, which no other task ever has; never the place in the store.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

LIFETIME_SECONDS = 30 * 86400
FOLDER = "media/"
"""What the keys of all outputs in the object store begin with."""

_PATH = re.compile(
    r"/media/([0-9a-f-]{36})/(0|[1-9]\d?)/([0-9a-f]{8,12})-([A-Za-z0-9_-]{27})/[^/]+"
)
_EXTENSIONS = {"video/mp4": "mp4", "video/webm": "webm", "video/quicktime": "mov"}


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One output of one task."""

    task_uid: str
    index: int

    @property
    def key(self) -> str:
        """Its key in the object store; the same however often the output is copied."""
        return f"{FOLDER}{self.task_uid}/{self.index}"


class MediaSigner:
    """Signs and verifies media paths under one secret key of 32 bytes, shared by both processes."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("the media key must have at least 16 bytes")
        self._key = key

    def sign(self, item: MediaItem, content_type: str, expires_at: int) -> str:
        """The path for `item` until `expires_at` (Unix seconds)."""
        name = f"video.{_EXTENSIONS.get(content_type, 'mp4')}"
        expiry = f"{expires_at:08x}"
        signature = self._signature(item, expiry)
        return f"/media/{item.task_uid}/{item.index}/{expiry}-{signature}/{name}"

    def verify(self, path: str, now: float) -> MediaItem | None:
        """The output a path gives access to, None if it is forged or out of date."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        item = MediaItem(match[1], int(match[2]))
        good = hmac.compare_digest(self._signature(item, match[3]), match[4])
        return item if good and int(match[3], 16) > now else None

    def _signature(self, item: MediaItem, expiry: str) -> str:
        message = f"media\0{item.task_uid}\0{item.index}\0{expiry}".encode()
        digest = hmac.digest(self._key, message, hashlib.sha256)[:20]
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
