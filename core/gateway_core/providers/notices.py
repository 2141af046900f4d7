"""Notices of providers that a job has ended, and their hand-over to the operator replica."""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from gateway_core.callbacks.orders import OperatorPort
from gateway_core.failures import describe_failure

ROOT = "/notices/"
_PATH = re.compile(r"/notices/([a-z0-9-]{1,63})/([0-9a-f-]{36})/([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice that a task's job has changed: the task's object name and uid."""

    name: str
    uid: str


class NoticeSigner:
    """Signs and verifies paths of notices with a key derived from the id key (16 bytes or more)."""

    def __init__(self, id_key: bytes) -> None:
        if len(id_key) < 16:
            raise ValueError("the id key must have at least 16 bytes")
        self._key = hmac.digest(id_key, b"notices", hashlib.sha256)

    def sign(self, notice: Notice) -> str:
        """Return the signed path of `notice`."""
        return f"{ROOT}{notice.name}/{notice.uid}/{self._signature(notice)}"

    def locate(self, base: str, notice: Notice) -> str | None:
        """Return the address of `notice` for a provider; None without a base."""
        return base.rstrip("/") + self.sign(notice) if base else None

    def verify(self, path: str) -> Notice | None:
        """Return the notice of a path, None where it is forged; in constant time."""
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        notice = Notice(found[1], found[2])
        return notice if hmac.compare_digest(self._signature(notice), found[3]) else None

    def _signature(self, notice: Notice) -> str:
        message = f"{notice.name}\0{notice.uid}".encode()
        digest = hmac.digest(self._key, message, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class NoticeUndelivered(Exception):
    """No replica accepted the notice; it may be sent again."""


class NoticeSink(Protocol):
    """Receiver of notices, which may repeat, or be of ended tasks."""

    async def deliver(self, notice: Notice) -> None:
        """Deliver a notice within seconds. NoticeUndelivered."""
        ...


_SECONDS = 3.0


class OperatorLink(OperatorPort):
    """Sends notices to the replica that owns the task."""

    def __init__(self, url: str, replicas: int, signer: NoticeSigner) -> None:
        super().__init__(url, replicas, _SECONDS)
        self._signer = signer

    async def deliver(self, notice: Notice) -> None:
        """Deliver a notice. NoticeUndelivered."""
        url = self.find_owner(notice.name) + self._signer.sign(notice)
        try:
            async with self._session.post(url, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoticeUndelivered(
                f"the operator did not answer: {describe_failure(error)}"
            ) from None
        if status != 204:
            raise NoticeUndelivered(f"the operator answered with HTTP status {status}")
