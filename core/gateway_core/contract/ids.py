"""Opaque ids: 26 base32 characters, a 96-bit body and a 34-bit tag keyed over account and body.

The tag makes a guessed or foreign id a 404 without any look-up, and of equal time (contract §0.4,
§0.5). Used by the API when it makes or is shown an id.
"""

import enum
import hashlib
import hmac
import re
import secrets

from gateway_core.contract.names import head_of

BODY_BYTES = 12
TAG_BITS = 34
_SHAPE = re.compile(r"[a-z2-7]{26}")
_BITS = 8 * BODY_BYTES + TAG_BITS
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
# every request has an id or two, and the standard library's Base32 takes longer than a look-up of
# its key
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_PLACES = tuple(range(_BITS - 10, -1, -10))
_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
"""To those that `int` reads."""


class Ownership(enum.Enum):
    """What an id says of itself, before anything is looked up."""

    MINTED = "minted"  # made by this gateway for this account
    FOREIGN = "foreign"  # of the minted shape, but its tag is not this account's
    NAMED = "named"  # of another shape: an object that an admin named


class IdMint:
    """Makes and checks ids under one secret key (32 bytes, the same in every replica)."""

    def __init__(self, key: bytes) -> None:
        if len(key) < 16:
            raise ValueError("the id key must have at least 16 bytes")
        self._key = key
        self._last = 0

    def mint_random(self, prefix: str, account: str) -> str:
        """A new unguessable id such as `task_…` for `account`."""
        return self._assemble(prefix, account, secrets.token_bytes(BODY_BYTES))

    def mint_keyed(self, prefix: str, account: str, *parts: str) -> str:
        """The id that (account, parts) always gives; the lock of an idempotent create (§2.2)."""
        message = b"\0".join(part.encode() for part in ("body", prefix, account, *parts))
        body = hmac.digest(self._key, message, hashlib.sha256)[:BODY_BYTES]
        return self._assemble(prefix, account, body)

    def mint_ordered(self, prefix: str, account: str, unix_ms: int) -> str:
        """A new id whose `read_order` is after those that this process minted before (§0.4).

        Of several processes the one with the later clock is after; within a millisecond the
        next is a random step on.
        """
        self._last = max(
            unix_ms << 48 | secrets.randbits(48), self._last + 1 + secrets.randbelow(2**24)
        )
        return self._assemble(prefix, account, self._last.to_bytes(BODY_BYTES, "big"))

    def check(self, prefix: str, account: str, wire_id: str) -> Ownership:
        """Whether `wire_id` was minted for `account`; takes the same time whatever the answer."""
        head = head_of(prefix)
        text = wire_id[len(head) :]
        if not wire_id.startswith(head) or not _SHAPE.fullmatch(text):
            return Ownership.NAMED
        value = _decode(text)
        body = (value >> TAG_BITS).to_bytes(BODY_BYTES, "big")
        expected = self._tag(prefix, account, body)
        given = value & ((1 << TAG_BITS) - 1)
        same = hmac.compare_digest(expected.to_bytes(5, "big"), given.to_bytes(5, "big"))
        return Ownership.MINTED if same else Ownership.FOREIGN

    def _assemble(self, prefix: str, account: str, body: bytes) -> str:
        value = (int.from_bytes(body, "big") << TAG_BITS) | self._tag(prefix, account, body)
        return head_of(prefix) + _encode(value)

    def _tag(self, prefix: str, account: str, body: bytes) -> int:
        message = b"\0".join((b"tag", prefix.encode(), account.encode(), body))
        digest = hmac.digest(self._key, message, hashlib.sha256)
        return int.from_bytes(digest[:5], "big") >> 6


def read_order(wire_id: str) -> int:
    """Where an id that was minted in order stands among others; ids of other shapes as 0.

    Base32 does not sort as what it stands for, so ids are not compared as text.
    """
    text = wire_id[-26:]
    return _decode(text) >> TAG_BITS if _SHAPE.fullmatch(text) else 0


def _encode(value: int) -> str:
    return "".join([_PAIRS[value >> place & 1023] for place in _PLACES])


def _decode(text: str) -> int:
    return int(text.translate(_DIGITS), 32)


def mint_request_id() -> str:
    """A fresh `req_…` id; it names no object, so it carries no tag (contract §0.8)."""
    return "req_" + _encode(secrets.randbits(_BITS))
