"""Grants: from a user's consent to codes, tokens, their rotation and revocation (§10.6, §10.7).

A grant's name is chosen with its code, so a replay of the code revokes what it issued, also while
that is being created. A grant has one valid refresh token, replaced by compare-and-set: of two
concurrent uses one wins, and the other is a reuse, which deletes the grant.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any

import structlog

from gateway_core.accounts.authentication import find_confirmed
from gateway_core.accounts.records import AccountRecord, UserRecord
from gateway_core.accounts.roles import governs
from gateway_core.api.errors import OAuthError, Unavailable
from gateway_core.api.ids import ACCOUNT_LABEL, IdMint, id_to_name
from gateway_core.api.key import digest
from gateway_core.api.oauth import GRANT_PREFIX, MOST_ACCESS_TOKENS, SCOPES, GatewayGrant
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_time, parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.repository import writing
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
from gateway_core.oauth.registration import CLIENTS, mark_authorized
from gateway_core.oauth.revocation import GRANTS, Revocations
from gateway_core.oauth.room import ClientIndex, Room
from gateway_core.oauth.tokens import TokenMint
from gateway_core.redis.link import CountersUnavailable

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
        clients: ClientIndex,
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
        self._revocations = Revocations(kube)
        self._room = Room(self._index, clients, self._revocations)
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

    def list_in(self, account: str) -> list[GrantRecord]:
        """The grants to the account, the newest first."""
        return self._index.list_in(account)

    def has_given(self, request: AuthorizationRequest, user: str, account: str) -> bool:
        """Whether the user has given this client as much, so that no page need ask again."""
        host, now = name_host(request.redirect_uri), self._clock()
        return any(
            grant.redirect_host == host
            and grant.scopes.issuperset(request.scopes)
            and min(grant.expires_at, grant.refresh.expires_at) > now
            for grant in self._index.list_same(user, request.client.id, account)
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
            await self._revocations.end(replay.grant)
            raise _invalid_grant() from None
        except CountersUnavailable as error:
            raise _unavailable() from error
        return response

    def name_grant(self, token: str) -> str | None:
        """The grant of a refresh token that this gateway issued; None for any other text."""
        parsed = self._tokens.parse(token)
        return None if parsed is None or parsed.kind != "refresh" else parsed.grant

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
            "access": self._mint_access(parsed.grant, generation, inf),
            "refresh": self._tokens.mint("refresh", parsed.grant, generation),
        }
        scopes: tuple[str, ...] = ()
        ends = 0.0
        known = self._table.get(parsed.grant)
        is_own = known is not None and known.client_id == client.id
        # told without a read, as the Kubernetes API may be away
        reused = known is not None and is_own and known.refresh.generation > parsed.generation
        if self._revocations.is_ending(parsed.grant):
            raise _invalid_grant()

        async def read() -> Object:
            try:
                obj = await self._kube.get(GRANTS.plural, parsed.grant)
            except ObjectNotFound:
                raise _invalid_grant() from None
            await self._check_alive(obj["spec"]["userName"], obj["spec"]["accountName"])
            return obj

        def decide(obj: Object) -> Mapping[str, Any] | None:
            nonlocal scopes, reused, ends
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
            scopes, ends = _narrow(grant.scopes, form.get("scope")), grant.expires_at
            tokens = self._describe_tokens(new, generation, scopes, grant.expires_at)
            kept = [
                token
                for token in obj["spec"].get("accessTokens") or []
                if parse_time(token["expirationTime"]).timestamp() > now
            ]
            tokens["accessTokens"] = [*kept, *tokens["accessTokens"]][-MOST_ACCESS_TOKENS:]
            return {"spec": tokens}

        if not reused:
            async with writing(GRANTS, parsed.grant):
                changed = await self._kube.update(GRANTS.plural, read, decide)
            if not reused:
                self._table.upsert(changed)
                return self._respond(new, scopes, ends)
        _log.warning("refresh token reused: grant revoked", grant=parsed.grant)
        await self._revocations.end(parsed.grant)
        raise _invalid_grant()

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
                    await self._revocations.delete(parsed.grant)
                else:
                    self._table.upsert(await self._kube.update(GRANTS.plural, read, decide))
        except _Gone:
            return

    async def revoke(self, user: UserRecord, name: str) -> bool:
        """Revoke a grant of the user, or to an account that they govern, with others of the same.

        Those are of the same user, client and account. False where there is none of this name that
        they may revoke. Unavailable.
        """
        async with writing(GRANTS, name):
            try:
                # read by name: another replica may have made it just now
                grant = project_grant(await self._kube.get(GRANTS.plural, name))
            except ObjectNotFound:
                return False
        role = user.find_role(grant.account)
        if grant.user != user.name and (role is None or not governs(role)):
            return False
        same = self._index.list_same(grant.user, grant.client_id, grant.account)
        for each in {name, *(record.name for record in same)}:
            await self._revocations.delete(each)
        return True

    async def _create(self, client: ClientRecord, code: Code) -> TokenResponse:
        await self._room.make(client, code.user, code.account)
        if client.id.startswith(f"{CLIENTS.prefix}_"):
            await mark_authorized(self._kube, client, code.user, self._clock())
        ends = self._clock() + self._lifetimes.family
        tokens = {
            "access": self._mint_access(code.grant, 1, ends),
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
            made, is_new = await self._kube.create_or_get(GRANTS.plural, obj)
        if not is_new:
            # Redis gave the code out twice: it lost the removal
            raise CodeReplayed(code.grant)
        self._table.upsert(made)
        await self._room.replace(client, code.user, code.account, code.grant)
        return self._respond(tokens, code.scopes, ends)

    def _mint_access(self, grant: str, generation: int, ends: float) -> str:
        end = min(ends, self._clock() + self._lifetimes.access)
        return self._tokens.mint("access", grant, generation, end)

    def _respond(
        self, tokens: Mapping[str, str], scopes: tuple[str, ...], ends: float
    ) -> TokenResponse:
        seconds = min(self._lifetimes.access, max(0, int(ends - self._clock())))
        return TokenResponse(tokens["access"], tokens["refresh"], seconds, scopes)

    async def _check_alive(self, user_name: str, account_name: str) -> None:
        """Raise `invalid_grant` unless the user is still a member of the account."""

        def is_member(user: UserRecord) -> bool:
            return not user.suspended and user.find_role(account_name) is not None

        user = await find_confirmed(self._users, user_name, is_member)
        account = await find_confirmed(self._accounts, account_name)
        if user is None or account is None or account.suspended:
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
