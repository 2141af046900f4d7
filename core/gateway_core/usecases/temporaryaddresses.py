"""Addresses of temporary files on the media host, and tickets to put bytes there (contract §2.5).

All that the media host has to know is sealed in the address, so it knows no accounts and asks
nobody; what is in it is told to nobody. Used by the API, which makes them, and by the media host.
"""

import re
from dataclasses import astuple, dataclass
from typing import TypeVar
from urllib.parse import quote

import orjson

from gateway_core.contract.stored import ObjectRef
from gateway_core.ports.sealing import Sealer

PATH = "/temporary/"
LIFE_SECONDS = 24 * 3600
PUT_SECONDS = 15 * 60
TICKET_SECONDS = 3600
"""How long what was put can be confirmed; it was put within the first quarter of an hour."""

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
    """What is to be put: `md5` is hex, `file_name` the name of the GatewayFile that it becomes.

    `issued_at` is Unix seconds.
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
    """Makes and reads them."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def make_read_path(self, address: Address, filename: str) -> str:
        """The path of a file; the same one each time."""
        return f"{PATH}{self._seal(_READ, address)}/{quote(filename, safe='')}"

    def find_address(self, path: str, now: float) -> Address | None:
        """What a path (percent-encoded or not) gives access to; None if forged or out of date."""
        match = _GET_PATH.fullmatch(path)
        found = self._unseal(_READ, match[1], Address) if match else None
        return found if found is not None and found.expires_at > now else None

    def make_put_path(self, ticket: Ticket) -> str:
        """The path to put the bytes of `ticket` at."""
        return PATH + self._seal(_PUT, ticket)

    def find_put(self, path: str, now: float) -> Ticket | None:
        """What may be put at a path; None if it is forged or out of date."""
        match = _PUT_PATH.fullmatch(path)
        found = self._unseal(_PUT, match[1], Ticket) if match else None
        return found if found is not None and now < found.issued_at + PUT_SECONDS else None

    def make_signed_id(self, ticket: Ticket) -> str:
        """What the client confirms with."""
        return self._seal(_CONFIRM, ticket)

    def find_ticket(self, signed_id: str, account: str) -> Ticket | None:
        """The ticket of one's own signed id, also of one that is out of date; None of others."""
        found = self._unseal(_CONFIRM, signed_id, Ticket)
        return found if found is not None and found.account == account else None

    def _seal(self, purpose: str, content: Address | Ticket) -> str:
        return self._sealer.seal(purpose, orjson.dumps(astuple(content)))

    def _unseal(self, purpose: str, text: str, kind: type[_Kind]) -> _Kind | None:
        content = self._sealer.unseal(purpose, text)
        return None if content is None else kind(*orjson.loads(content))
