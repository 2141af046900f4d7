"""Addresses on the media host: signed for task outputs, sealed for temporary files."""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import astuple, dataclass
from typing import TypeVar
from urllib.parse import quote

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from gateway_core.api.resource import FOLDER, ObjectRef

LIFETIME_SECONDS = 30 * 86400

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
        """Its key in the object store; always the same for one output."""
        return f"{FOLDER}{self.task_uid}/{self.index}"


class MediaSigner:
    """Signs and verifies media paths with a secret key of 32 bytes that both processes share."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("the media key must have at least 16 bytes")
        self._key = key

    def sign(self, item: MediaItem, content_type: str, expires_at: int) -> str:
        """Return the path for `item` until `expires_at` (Unix seconds)."""
        name = f"video.{_EXTENSIONS.get(content_type, 'mp4')}"
        expiry = f"{expires_at:08x}"
        signature = self._signature(item, expiry)
        return f"/media/{item.task_uid}/{item.index}/{expiry}-{signature}/{name}"

    def verify(self, path: str, now: float) -> MediaItem | None:
        """Return the output of a path; None if the path is forged or has expired."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        item = MediaItem(match[1], int(match[2]))
        # constant time: the comparison must not reveal how much of a forged signature is right
        good = hmac.compare_digest(self._signature(item, match[3]), match[4])
        return item if good and int(match[3], 16) > now else None

    def _signature(self, item: MediaItem, expiry: str) -> str:
        message = f"media\0{item.task_uid}\0{item.index}\0{expiry}".encode()
        digest = hmac.digest(self._key, message, hashlib.sha256)[:20]
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


MOST_CHARACTERS = 4096


class Sealer:
    """Deterministic encryption of short contents for URLs, as text of `[A-Za-z0-9_-]`.

    One content always gives one text for a purpose. `secret` has at least 16 bytes and is the same
    in every process.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise ValueError("the secret must have at least 16 bytes")
        self._cipher = AESSIV(hmac.digest(secret, b"sealed addresses", hashlib.sha512))

    def seal(self, purpose: str, content: bytes) -> str:
        """Return the sealed text; it reveals only the content's length."""
        sealed = self._cipher.encrypt(content, [purpose.encode()])
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def unseal(self, purpose: str, text: str) -> bytes | None:
        """Return the content; None unless the text was sealed by this gateway for this purpose."""
        if len(text) > MOST_CHARACTERS or not text.isascii():
            return None
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            content = self._cipher.decrypt(sealed, [purpose.encode()])
        except (InvalidTag, binascii.Error, ValueError):
            return None
        # Base64 can encode the last bits in several ways: only the one that `seal` writes counts
        return content if self.seal(purpose, content) == text else None


PATH = "/temporary/"
LIFE_SECONDS = 24 * 3600
PUT_SECONDS = 15 * 60
TICKET_SECONDS = 3600
"""How long an upload can be confirmed; its bytes are put within the first 15 minutes."""

_READ, _PUT, _CONFIRM = "temporary-read", "temporary-put", "temporary-confirm"
_GET_PATH = re.compile(r"/temporary/([A-Za-z0-9_-]+)/[^/]+")
_PUT_PATH = re.compile(r"/temporary/([A-Za-z0-9_-]+)")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to read a temporary file. `expires_at` is Unix seconds."""

    key: str
    bytes: int
    sha256: str
    media_type: str
    expires_at: int

    @property
    def segment(self) -> ObjectRef:
        """The bytes."""
        return ObjectRef(key=self.key, bytes=self.bytes, sha256=self.sha256)


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to put the bytes of a temporary file, whose GatewayFile will be `file_name`.

    `md5` is hex, `issued_at` Unix seconds.
    """

    account: str
    file_name: str
    key: str
    filename: str
    bytes: int
    md5: str
    issued_at: int


_Kind = TypeVar("_Kind", Address, Ticket)


class TemporaryAddresses:
    """Paths and signed ids of temporary files: everything is in the address, nothing is stored."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def make_read_path(self, address: Address, filename: str) -> str:
        """Return the path of a file; always the same."""
        return f"{PATH}{self._seal(_READ, address)}/{quote(filename, safe='')}"

    def find_address(self, path: str, now: float) -> Address | None:
        """Return the file of a path (percent-encoded or not); None if forged or expired."""
        match = _GET_PATH.fullmatch(path)
        found = self._unseal(_READ, match[1], Address) if match else None
        return found if found is not None and found.expires_at > now else None

    def make_put_path(self, ticket: Ticket) -> str:
        """Return the path to put the bytes of `ticket` at."""
        return PATH + self._seal(_PUT, ticket)

    def find_put(self, path: str, now: float) -> Ticket | None:
        """Return what may be put at a path; None if forged or expired."""
        match = _PUT_PATH.fullmatch(path)
        found = self._unseal(_PUT, match[1], Ticket) if match else None
        return found if found is not None and now < found.issued_at + PUT_SECONDS else None

    def make_signed_id(self, ticket: Ticket) -> str:
        """Return the id with which the client confirms its upload."""
        return self._seal(_CONFIRM, ticket)

    def find_ticket(self, signed_id: str, account: str) -> Ticket | None:
        """Return the ticket of the account's own signed id, also an expired one; else None."""
        found = self._unseal(_CONFIRM, signed_id, Ticket)
        return found if found is not None and found.account == account else None

    def _seal(self, purpose: str, content: Address | Ticket) -> str:
        return self._sealer.seal(purpose, orjson.dumps(astuple(content)))

    def _unseal(self, purpose: str, text: str, kind: type[_Kind]) -> _Kind | None:
        content = self._sealer.unseal(purpose, text)
        return None if content is None else kind(*orjson.loads(content))
