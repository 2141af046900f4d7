"""Addresses that a provider calls when a job has ended: one for each task, unguessable.

The operator makes them, the API verifies what is called. A call says nothing but "ask now", so that
whoever learns an address can have one task polled a little sooner and nothing else.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

ROOT = "/notices/"
_PATH = re.compile(r"/notices/([a-z0-9-]{1,63})/([0-9a-f-]{36})/([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Notice:
    """That something has become of a task's job: the task's object name and uid."""

    name: str
    uid: str


class NoticeSigner:
    """Signs and verifies paths of notices. The key is derived from the id key (16 bytes or more),
    which API and operator share."""

    def __init__(self, id_key: bytes) -> None:
        if len(id_key) < 16:
            raise ValueError("the id key must have at least 16 bytes")
        self._key = hmac.digest(id_key, b"notices", hashlib.sha256)

    def sign(self, notice: Notice) -> str:
        """The path that stands for `notice`."""
        return f"{ROOT}{notice.name}/{notice.uid}/{self._signature(notice)}"

    def locate(self, base: str, notice: Notice) -> str | None:
        """The address that a provider is given for `notice`; None without a base."""
        return base.rstrip("/") + self.sign(notice) if base else None

    def verify(self, path: str) -> Notice | None:
        """What a path stands for, None if it is forged. Takes the same time for any signature."""
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        notice = Notice(found[1], found[2])
        return notice if hmac.compare_digest(self._signature(notice), found[3]) else None

    def _signature(self, notice: Notice) -> str:
        message = f"{notice.name}\0{notice.uid}".encode()
        digest = hmac.digest(self._key, message, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
