"""API keys: their format, their making and the digest that is stored (contract §0.10).

A key is `sk-` or `mk-`, an 8-character id, `_`, 32 base62 characters, and 6 base62 characters of
CRC32 over all before them. Used by the API to authenticate and by whatever issues keys.
"""

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

KeyClass = Literal["Standard", "Management"]

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PAIRS = tuple(high + low for high in _BASE62 for low in _BASE62)
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_PREFIX: dict[KeyClass, str] = {"Standard": "sk", "Management": "mk"}
_SHAPE = re.compile(r"(sk|mk)-([a-z2-7]{8})_([0-9A-Za-z]{32})([0-9A-Za-z]{6})")


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key. `plaintext` is shown once and never stored."""

    plaintext: str
    id: str
    hint: str


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key: its class and the 8-character id it is found by."""

    key_class: KeyClass
    id: str


def mint_key(key_class: KeyClass = "Standard") -> MintedKey:
    """A new random key of 190 bits."""
    key_id = "".join(secrets.choice(_BASE32) for _ in range(8))
    secret = "".join(secrets.choice(_BASE62) for _ in range(32))
    head = f"{_PREFIX[key_class]}-{key_id}_{secret}"
    plaintext = head + _checksum(head)
    return MintedKey(plaintext=plaintext, id=key_id, hint=hint_of(plaintext))


def hint_of(plaintext: str) -> str:
    """What is shown of a key in lists, so that people know which one it is."""
    return f"{plaintext[:7]}…{plaintext[-4:]}"


def parse_key(text: str) -> ParsedKey | None:
    """The parts of a well-formed key, or None: a typing error costs no look-up."""
    match = _SHAPE.fullmatch(text)
    if match is None or _checksum(text[:-6]) != match[4]:
        return None
    return ParsedKey(key_class="Standard" if match[1] == "sk" else "Management", id=match[2])


def digest(plaintext: str, pepper: bytes) -> str:
    """What is stored of a key: hex HMAC-SHA256 under a pepper that no custom resource holds."""
    code = _begin_digest(pepper).copy()
    code.update(plaintext.encode())
    return code.hexdigest()


@lru_cache(maxsize=64)
def _begin_digest(pepper: bytes) -> hmac.HMAC:
    """A third of the work is the same for every key."""
    return hmac.new(pepper, digestmod=hashlib.sha256)


def _checksum(head: str) -> str:
    """The CRC32 in base 62; this is worked out at every request."""
    high, low = divmod(zlib.crc32(head.encode()), 62**4)
    middle, low = divmod(low, 62**2)
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]
