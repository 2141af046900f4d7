"""Access and refresh tokens: their form, and what can be told of one without a look-up.

A token is `gwat_` (access) or `gwrt_` (refresh), the 26 characters of its grant, the generation of
the refresh that issued it, of an access token `x` and its expiry in Unix seconds, 192 secret bits,
and a 96-bit tag keyed over all of that. So a guessed or expired token is refused without a look-up,
and a spent refresh token is told from a forged one by its generation: only the former revokes its
grant (contract §10.7).
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from gateway_core.api.oauth import GRANT_PREFIX

TokenKind = Literal["access", "refresh"]
_PREFIX: dict[TokenKind, str] = {"access": "gwat", "refresh": "gwrt"}
_KINDS: dict[str, TokenKind] = {"gwat": "access", "gwrt": "refresh"}
_SHAPE = re.compile(
    r"(gwat|gwrt)_([a-z2-7]{26})_([1-9][0-9]{0,9})(?:x([0-9]{1,12}))?_[0-9A-Za-z_-]{32}"
)
_TAG_CHARACTERS = 16
MOST_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A token that this gateway issued: its kind, its grant's object name, its generation.

    `expires_at` is Unix seconds, infinite where only the grant says when it ends.
    """

    kind: TokenKind
    grant: str
    generation: int
    expires_at: float = inf


def is_token(text: str) -> bool:
    """Return whether the text is meant to be a token, by its first characters."""
    return text[:5] in ("gwat_", "gwrt_")


class TokenMint:
    """Mints and checks tokens under a secret key, the same in every process."""

    def __init__(self, id_key: bytes) -> None:
        """`id_key` is the key of `IdMint`, from which a key of its own is derived."""
        self._key = hmac.digest(id_key, b"oauth tokens", hashlib.sha256)
        self._derivation_key = hmac.digest(id_key, b"derived oauth tokens", hashlib.sha256)

    def mint(
        self,
        kind: TokenKind,
        grant: str,
        generation: int,
        expires_at: float = inf,
        *,
        seed: str | None = None,
    ) -> str:
        """Return a token of the grant with this object name; it contains its expiry, if known.

        It is random, or derived from a secret `seed`: the same for the same arguments.
        """
        body = grant.removeprefix(f"{GRANT_PREFIX}-")
        end = "" if expires_at == inf else f"x{ceil(expires_at)}"
        head = f"{_PREFIX[kind]}_{body}_{generation}{end}_"
        head += secrets.token_urlsafe(24) if seed is None else self._derive(f"{head} {seed}")
        return head + self._tag(head)

    def parse(self, text: str) -> ParsedToken | None:
        """Return what a token of this gateway says, None for any other text; in constant time."""
        head, tag = text[:-_TAG_CHARACTERS], text[-_TAG_CHARACTERS:]
        match = _SHAPE.fullmatch(head) if len(text) <= MOST_CHARACTERS and text.isascii() else None
        if match is None or not hmac.compare_digest(self._tag(head), tag):
            return None
        end = float(match[4]) if match[4] else inf
        return ParsedToken(_KINDS[match[1]], f"{GRANT_PREFIX}-{match[2]}", int(match[3]), end)

    def _derive(self, text: str) -> str:
        code = hmac.digest(self._derivation_key, text.encode(), hashlib.sha256)
        return urlsafe_b64encode(code[:24]).decode()

    def _tag(self, head: str) -> str:
        code = hmac.digest(self._key, head.encode(), hashlib.sha256)
        return urlsafe_b64encode(code[:12]).decode()
