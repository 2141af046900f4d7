"""Authorization codes: single use, 60 s, kept in Redis under a digest (contract §10.6)."""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode
from dataclasses import asdict, dataclass

import orjson

from gateway_core.redis.transient import TransientStore

CODE_SECONDS = 60
REPLAY_SECONDS = 3600
"""How long a replay of a code is recognized, and revokes."""
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")


@dataclass(frozen=True, slots=True)
class Code:
    """What a code stands for. `grant` is the name that its grant will have."""

    grant: str
    client_id: str
    client_name: str
    redirect_uri: str
    names_redirect: bool
    challenge: str
    resource: str
    user: str
    account: str
    scopes: tuple[str, ...]

    def is_answered(self, verifier: str) -> bool:
        """Return whether the verifier is that of the S256 challenge (RFC 7636)."""
        if not _VERIFIER.fullmatch(verifier):
            return False
        hashed = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        return hmac.compare_digest(hashed, self.challenge.encode())

    def is_sent_back_to(self, redirect_uri: str | None) -> bool:
        """Return whether the token request names the redirect URI of the authorization request."""
        if redirect_uri is None:
            return not self.names_redirect
        return redirect_uri == self.redirect_uri


class CodeReplayed(Exception):
    """The code was presented before; `grant` is the name of the grant that it made."""

    def __init__(self, grant: str) -> None:
        super().__init__("an authorization code was presented again")
        self.grant = grant


class CodeStore:
    """Codes of all clients. Every method raises CountersUnavailable."""

    def __init__(self, store: TransientStore) -> None:
        self._store = store

    async def issue(self, code: Code) -> str:
        """Return a new code that stands for `code`."""
        text = secrets.token_urlsafe(32)
        name = _digest(text)
        await self._store.put(f"issued/{name}", code.grant.encode(), REPLAY_SECONDS)
        await self._store.put(f"code/{name}", orjson.dumps(asdict(code)), CODE_SECONDS)
        return text

    async def redeem(self, text: str) -> Code | None:
        """Return what the code stands for, once; None for an unknown or expired one.

        Raises CodeReplayed within an hour after its issue. The replay is noted before that, so that
        `check_unreplayed` tells it to the call that is creating the grant meanwhile.
        """
        name = _digest(text)
        raw = await self._store.take(f"code/{name}")
        if raw is not None:
            facts = orjson.loads(raw)
            return Code(**{**facts, "scopes": tuple(facts["scopes"])})
        issued = await self._store.read(f"issued/{name}")
        if issued is None:
            return None
        await self._store.put(f"replayed/{name}", b"1", REPLAY_SECONDS)
        raise CodeReplayed(issued.decode())

    async def check_unreplayed(self, text: str, code: Code) -> None:
        """Raise CodeReplayed where the code was presented again since it was redeemed."""
        if await self._store.read(f"replayed/{_digest(text)}") is not None:
            raise CodeReplayed(code.grant)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
