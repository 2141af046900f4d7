"""Grants: from a user's consent to codes, tokens, their rotation and revocation (§10.6, §10.7).

A grant's name is chosen with its code, so a replay of the code revokes what it issued, also while
that is being created. A grant has one valid refresh token, replaced by compare-and-set: of two
concurrent uses one wins, and the other is a reuse, which deletes the grant.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway_core.accounts.authentication import find_current
from gateway_core.accounts.records import AccountRecord, UserRecord
from gateway_core.api.errors import OAuthError, Unavailable
from gateway_core.api.ids import ACCOUNT_LABEL, IdMint, id_to_name
from gateway_core.api.key import digest
from gateway_core.api.oauth import (
    GRANT_PREFIX,
    MOST_ACCESS_TOKENS,
    SCOPES,
    GatewayGrant,
)
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_time, parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.repository import Kind, writing
from gateway_core.oauth.authorization import AuthorizationRequest
from gateway_core.oauth.codes import Code, CodeReplayed, CodeStore
from gateway_core.oauth.records import (
    ClientRecord,
    GrantIndex,
    GrantRecord,
    StoredToken,
    project_grant,
)
from gateway_core.oauth.redirects import name_host
from gateway_core.oauth.registration import CLIENTS
from gateway_core.oauth.tokens import TokenMint
from gateway_core.redis.link import CountersUnavailable

MOST_GRANTS = 100
"""Grants of one user; a new one takes the place of the one that was used least recently."""
GRANTS = Kind(GatewayGrant.plural, GRANT_PREFIX, "Grant")

_log = structlog.get_logger(__name__)


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


class Grants:
    """Issues, rotates and revokes. `grants` is the table of all grants."""

    def __init__(
        self,
        kube: KubernetesClient,
        codes: CodeStore,
        grants: Cache[GrantRecord],
        accounts: ReadThrough[AccountRecord],
        users: ReadThrough[UserRecord],
        ids: IdMint,
        tokens: TokenMint,
        peppers: Mapping[int, bytes],
        *,
        lifetimes: Lifetimes,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._codes = codes
        self._table = grants
        self._index = GrantIndex(grants)
        self._accounts = accounts
        self._users = users
        self._ids = ids
        self._tokens = tokens
        self._peppers = peppers
        self._lifetimes = lifetimes
        self._clock = clock

    def list_of(self, user: str) -> list[GrantRecord]:
        """The grants that the user gave, the newest first."""
        return self._index.list_of(user)

    def has_given(self, request: AuthorizationRequest, user: str, account: str) -> bool:
        """Whether the user has given this client as much, so that no page need ask again."""
        host = name_host(request.redirect_uri)
        return any(
            grant.client_id == request.client.id
            and grant.account == account
            and grant.redirect_host == host
            and grant.scopes.issuperset(request.scopes)
            for grant in self._index.list_of(user)
        )

    async def issue_code(self, request: AuthorizationRequest, user: str, account: str) -> str:
        """A code for what the user has approved. Unavailable."""
        grant = id_to_name(self._ids.mint_random(GRANT_PREFIX, account))
        code = Code(
            grant=grant,
            client_id=request.client.id,
            client_name=request.client.name,
            redirect_uri=request.redirect_uri,
            names_redirect=request.names_redirect,
            challenge=request.challenge,
            resource=request.resource,
            user=user,
            account=account,
            scopes=request.scopes,
        )
        try:
            return await self._codes.issue(code)
        except CountersUnavailable as error:
            raise _unavailable() from error

    async def exchange(self, client: ClientRecord, form: Mapping[str, str]) -> TokenResponse:
        """The first tokens of a grant, for a code.

        Raises OAuthError `invalid_grant`, `invalid_request`, `invalid_target`; Unavailable.
        """
        presented, verifier = _require(form, "code"), _require(form, "code_verifier")
        try:
            code = await self._codes.redeem(presented)
            if code is None or code.client_id != client.id:
                raise _invalid_grant()
            if not code.is_sent_back_to(form.get("redirect_uri")) or not code.is_answered(verifier):
                raise _invalid_grant()
            await self._check_alive(code.user, code.account)
            response = await self._create(client, code)
            await self._codes.check_unreplayed(presented, code)
        except CodeReplayed as replay:
            _log.warning("authorization code presented again", grant=replay.grant)
            await self._delete(replay.grant)
            raise _invalid_grant() from None
        except CountersUnavailable as error:
            raise _unavailable() from error
        return response

    async def refresh(self, client: ClientRecord, form: Mapping[str, str]) -> TokenResponse:
        """New tokens for a refresh token, which is spent thereby.

        A spent token revokes the whole grant. Raises OAuthError `invalid_grant`, `invalid_request`,
        `invalid_scope`; Unavailable.
        """
        presented = _require(form, "refresh_token")
        parsed = self._tokens.parse(presented)
        if parsed is None or parsed.kind != "refresh":
            raise _invalid_grant()
        now = self._clock()
        generation = parsed.generation + 1
        new = {
            "access": self._tokens.mint("access", parsed.grant, generation),
            "refresh": self._tokens.mint("refresh", parsed.grant, generation),
        }
        scopes: tuple[str, ...] = ()
        reused = False

        async def read() -> Object:
            try:
                obj = await self._kube.get(GRANTS.plural, parsed.grant)
            except ObjectNotFound:
                raise _invalid_grant() from None
            await self._check_alive(obj["spec"]["userName"], obj["spec"]["accountName"])
            return obj

        def decide(obj: Object) -> Mapping[str, Any] | None:
            nonlocal scopes, reused
            grant = project_grant(obj)
            current = grant.refresh
            if grant.client_id != client.id:
                raise _invalid_grant()
            if self._matches(new["refresh"], current):
                # the answer to this very write was lost
                return None
            reused = not self._matches(presented, current)
            if reused:
                return None
            if min(current.expires_at, grant.expires_at) <= now:
                raise _invalid_grant()
            scopes = _narrow(grant.scopes, form.get("scope"))
            tokens = self._describe_tokens(new, generation, scopes, grant.expires_at)
            kept = [
                token
                for token in obj["spec"].get("accessTokens") or []
                if parse_time(token["expirationTime"]).timestamp() > now
            ]
            tokens["accessTokens"] = [*kept, *tokens["accessTokens"]][-MOST_ACCESS_TOKENS:]
            return {"spec": tokens}

        async with writing(GRANTS, parsed.grant):
            changed = await self._kube.update(GRANTS.plural, read, decide)
        if reused:
            _log.warning("refresh token reused: grant revoked", grant=parsed.grant)
            await self._delete(parsed.grant)
            raise _invalid_grant()
        self._table.upsert(changed)
        return TokenResponse(new["access"], new["refresh"], self._lifetimes.access, scopes)

    async def revoke_token(self, client: ClientRecord, token: str) -> None:
        """Revoke a token of the client: a refresh token with its grant, an access token alone.

        Any other token is none of the client's, and nothing happens. Unavailable.
        """
        parsed = self._tokens.parse(token)
        if parsed is None:
            return

        def decide(obj: Object) -> Mapping[str, Any] | None:
            tokens = obj["spec"].get("accessTokens") or []
            kept = [one for one in tokens if one["generation"] != parsed.generation]
            return None if len(kept) == len(tokens) else {"spec": {"accessTokens": kept}}

        async def read() -> Object:
            try:
                obj = await self._kube.get(GRANTS.plural, parsed.grant)
            except ObjectNotFound:
                raise _Gone from None
            if obj["spec"]["clientId"] != client.id:
                raise _Gone
            return obj

        try:
            async with writing(GRANTS, parsed.grant):
                if parsed.kind == "refresh":
                    await read()
                    await self._delete(parsed.grant)
                else:
                    self._table.upsert(await self._kube.update(GRANTS.plural, read, decide))
        except _Gone:
            return

    async def revoke(self, user: str, name: str) -> bool:
        """Revoke a grant of the user; False where the user has none of this name. Unavailable."""
        record = self._table.get(name)
        if record is None or record.user != user:
            return False
        await self._delete(name)
        return True

    async def _create(self, client: ClientRecord, code: Code) -> TokenResponse:
        if client.id.startswith(f"{CLIENTS.prefix}_"):
            await self._mark_authorized(client)
        await self._make_room(code.user)
        ends = self._clock() + self._lifetimes.family
        tokens = {
            "access": self._tokens.mint("access", code.grant, 1),
            "refresh": self._tokens.mint("refresh", code.grant, 1),
        }
        spec = {
            "userName": code.user,
            "accountName": code.account,
            "clientId": code.client_id,
            "clientName": code.client_name,
            "redirectHost": name_host(code.redirect_uri),
            "scopes": list(code.scopes),
            "resource": code.resource,
            "expirationTime": _format(ends),
            **self._describe_tokens(tokens, 1, code.scopes, ends),
        }
        labels = {ACCOUNT_LABEL: code.account}
        obj = skeleton(GatewayGrant, code.grant, labels=labels) | {"spec": spec}
        async with writing(GRANTS, code.grant):
            made, _ = await self._kube.create_or_get(GRANTS.plural, obj)
        self._table.upsert(made)
        lifetime = self._lifetimes.access
        return TokenResponse(tokens["access"], tokens["refresh"], lifetime, code.scopes)

    async def _mark_authorized(self, client: ClientRecord) -> None:
        """Record that a user has given the client access, before the sweep may delete it."""
        if client.authorized:
            return
        name = id_to_name(client.id)

        async def read() -> Object:
            try:
                return await self._kube.get(CLIENTS.plural, name)
            except ObjectNotFound:
                raise OAuthError("invalid_client", "The client is gone.", status=401) from None

        def decide(obj: Object) -> Mapping[str, Any] | None:
            return None if obj["spec"].get("authorized") else {"spec": {"authorized": True}}

        async with writing(CLIENTS, name):
            await self._kube.update(CLIENTS.plural, read, decide)

    async def _make_room(self, user: str) -> None:
        grants = self._index.list_of(user)
        spare = sorted(
            grants,
            key=lambda grant: max(grant.last_used_at, parse_time(grant.created_at).timestamp()),
        )
        for grant in spare[: max(0, len(grants) + 1 - MOST_GRANTS)]:
            _log.info("grant replaced by a newer one", user=user, grant=grant.name)
            await self._delete(grant.name)

    async def _delete(self, name: str) -> None:
        async with writing(GRANTS, name):
            await self._kube.delete(GRANTS.plural, name)

    async def _check_alive(self, user_name: str, account_name: str) -> None:
        """Raise `invalid_grant` unless the user is still a member of the account."""
        user = await find_current(self._users, user_name)
        account = await find_current(self._accounts, account_name)
        if user is None or user.suspended or account is None or account.suspended:
            raise _invalid_grant()
        if user.find_role(account_name) is None:
            raise _invalid_grant()

    def _matches(self, token: str, stored: StoredToken) -> bool:
        pepper = self._peppers.get(stored.pepper_version)
        return pepper is not None and hmac.compare_digest(digest(token, pepper), stored.digest)

    def _describe_tokens(
        self, tokens: Mapping[str, str], generation: int, scopes: tuple[str, ...], ends: float
    ) -> dict[str, Any]:
        """The fields of the spec that hold the digests; nothing outlives the grant's end."""
        now, version = self._clock(), max(self._peppers)
        pepper = self._peppers[version]
        return {
            "refreshToken": {
                "digest": digest(tokens["refresh"], pepper),
                "pepperVersion": version,
                "generation": generation,
                "expirationTime": _format(min(ends, now + self._lifetimes.refresh)),
            },
            "accessTokens": [
                {
                    "generation": generation,
                    "digest": digest(tokens["access"], pepper),
                    "pepperVersion": version,
                    "scopes": list(scopes),
                    "expirationTime": _format(min(ends, now + self._lifetimes.access)),
                }
            ],
        }


class _Gone(Exception):
    """There is no such grant of the client."""


def _require(form: Mapping[str, str], name: str) -> str:
    value = form.get(name)
    if not value:
        raise OAuthError("invalid_request", f"The parameter {name} is missing.")
    return value


def _narrow(granted: frozenset[str], asked: str | None) -> tuple[str, ...]:
    wanted = granted if not asked else frozenset(asked.split())
    if not wanted or not wanted <= granted:
        raise OAuthError("invalid_scope", "A scope was not granted.")
    return tuple(scope for scope in SCOPES if scope in wanted)


def _format(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))


def _invalid_grant() -> OAuthError:
    return OAuthError("invalid_grant", "The code or token is not valid.")


def _unavailable() -> Unavailable:
    return Unavailable("Authorization is not possible now.")
