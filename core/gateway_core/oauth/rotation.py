"""Tokens of a grant and their rotation (contract §10.7). Pure, but for the random first token.

The successor of a refresh token is derived from it under the gateway's key. So a repetition, at any
replica and after any loss, gets the same successor, and no token is stored for that.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Any

from gateway_core.api.errors import OAuthError
from gateway_core.api.key import digest
from gateway_core.api.oauth import MOST_ACCESS_TOKENS, SCOPES
from gateway_core.api.resource import Object
from gateway_core.api.times import format_precise_time, format_time, parse_time
from gateway_core.oauth.records import GrantRecord, StoredToken, read_grant
from gateway_core.oauth.tokens import TokenMint

GRACE_SECONDS = 30.0
"""Time after the first use of a refresh token in which a repetition gets the same successor."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Seconds (contract §10.7)."""

    access: int = 3600
    refresh: int = 30 * 24 * 3600
    family: int = 180 * 24 * 3600


@dataclass(frozen=True, slots=True)
class TokenResponse:
    """The tokens that a client gets."""

    access_token: str
    refresh_token: str
    expires_in: int
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Issue:
    """Tokens for a client, and the fields of the grant's spec to write for them, if any."""

    response: TokenResponse
    spec: Mapping[str, Any] | None


def is_repetition(grant: GrantRecord, generation: int, now: float) -> bool:
    """Return whether a second use of a refresh token of this generation is a repetition.

    It is within the grace, while its successor has not been used.
    """
    is_latest = grant.refresh.generation == generation + 1
    return is_latest and now - grant.refreshed_at <= GRACE_SECONDS


class TokenIssuer:
    """Issues tokens. The newest of `peppers` makes the digests."""

    def __init__(self, mint: TokenMint, peppers: Mapping[int, bytes], lifetimes: Lifetimes) -> None:
        self._mint = mint
        self._peppers = peppers
        self._lifetimes = lifetimes

    def matches(self, token: str, stored: StoredToken) -> bool:
        """Return whether the digest is of this token."""
        pepper = self._peppers.get(stored.pepper_version)
        return pepper is not None and hmac.compare_digest(digest(token, pepper), stored.digest)

    def begin(self, grant: str, scopes: tuple[str, ...], ends: float, now: float) -> Issue:
        """Return the first tokens of a grant that ends at `ends`."""
        refresh = self._mint.mint("refresh", grant, 1)
        access, stored, seconds = self._issue_access(grant, 1, scopes, ends, now, refresh)
        spec = {"refreshToken": self._describe(refresh, 1, ends, now), "accessTokens": [stored]}
        return Issue(TokenResponse(access, refresh, seconds, scopes), spec)

    def advance(self, obj: Object, presented: str, asked: str | None, now: float) -> Issue | None:
        """Return the tokens for a refresh token of this grant; None where it is reused.

        Raises OAuthError `invalid_grant` where it has expired, `invalid_scope`.
        """
        grant = read_grant(obj)
        parsed = self._mint.parse(presented)
        assert parsed is not None
        generation = parsed.generation + 1
        refresh = self._mint.mint("refresh", grant.name, generation, seed=presented)
        repeats = is_repetition(grant, parsed.generation, now)
        if not self.matches(refresh if repeats else presented, grant.refresh):
            return None
        if min(grant.refresh.expires_at, grant.expires_at) <= now:
            raise refuse_grant()
        scopes = _narrow(grant.scopes, asked)
        if repeats:
            again = self._find_access(grant, generation, scopes, now, presented)
            if again is not None:
                access, seconds = again
                return Issue(TokenResponse(access, refresh, seconds, scopes), None)
        access, stored, seconds = self._issue_access(
            grant.name, generation, scopes, grant.expires_at, now, presented
        )
        kept = [
            token
            for token in obj["spec"].get("accessTokens") or []
            if parse_time(token["expirationTime"]).timestamp() > now
        ]
        spec: dict[str, Any] = {"accessTokens": [*kept, stored][-MOST_ACCESS_TOKENS:]}
        if not repeats:
            spec["refreshToken"] = self._describe(refresh, generation, grant.expires_at, now)
        return Issue(TokenResponse(access, refresh, seconds, scopes), spec)

    def _find_access(
        self,
        grant: GrantRecord,
        generation: int,
        scopes: tuple[str, ...],
        now: float,
        presented: str,
    ) -> tuple[str, int] | None:
        """Return the access token that was issued with these scopes, and its seconds."""
        for stored in grant.access:
            if stored.generation == generation and stored.expires_at > now:
                token = self._mint_access(
                    grant.name, generation, scopes, stored.expires_at, presented
                )
                if self.matches(token, stored):
                    return token, ceil(stored.expires_at - now)
        return None

    def _issue_access(
        self,
        grant: str,
        generation: int,
        scopes: tuple[str, ...],
        ends: float,
        now: float,
        parent: str,
    ) -> tuple[str, dict[str, Any], int]:
        """Return an access token, its fields in the grant, and its seconds."""
        # in whole seconds, as it is stored: a repetition derives the token from it again
        end = int(min(ends, now + self._lifetimes.access))
        token = self._mint_access(grant, generation, scopes, end, parent)
        version = max(self._peppers)
        stored = {
            "generation": generation,
            "digest": digest(token, self._peppers[version]),
            "pepperVersion": version,
            "scopes": list(scopes),
            "expirationTime": format_time(_at(end)),
        }
        return token, stored, max(0, ceil(end - now))

    def _mint_access(
        self, grant: str, generation: int, scopes: tuple[str, ...], end: float, parent: str
    ) -> str:
        seed = f"{' '.join(scopes)} {parent}"
        return self._mint.mint("access", grant, generation, end, seed=seed)

    def _describe(self, token: str, generation: int, ends: float, now: float) -> dict[str, Any]:
        version = max(self._peppers)
        return {
            "digest": digest(token, self._peppers[version]),
            "pepperVersion": version,
            "generation": generation,
            "issuedTime": format_precise_time(_at(now)),
            "expirationTime": format_time(_at(min(ends, now + self._lifetimes.refresh))),
        }


def refuse_grant() -> OAuthError:
    """Return the refusal of a code or refresh token; one text for all reasons."""
    return OAuthError("invalid_grant", "The code or token is not valid.")


def _narrow(granted: frozenset[str], asked: str | None) -> tuple[str, ...]:
    wanted = granted if not asked else frozenset(asked.split())
    if not wanted or not wanted <= granted:
        raise OAuthError("invalid_scope", "A scope was not granted.")
    return tuple(scope for scope in SCOPES if scope in wanted)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
