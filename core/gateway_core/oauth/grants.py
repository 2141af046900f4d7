"""Grants: from a user's consent to codes, tokens, their rotation and revocation (§10.6, §10.7).

A grant's name is chosen with its code, so a replay of the code revokes what it issued, also while
that is being created. A grant has one valid refresh token, replaced by compare-and-set. A
repetition shortly after gets the same successor; any other reuse deletes the grant.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from gateway_core.accounts.authentication import find_confirmed
from gateway_core.accounts.records import AccountRecord, UserRecord
from gateway_core.accounts.roles import governs
from gateway_core.api.errors import OAuthError, Unavailable
from gateway_core.api.ids import ACCOUNT_LABEL, REMAINS_FINALIZER, IdMint, id_to_name
from gateway_core.api.oauth import GRANT_PREFIX, GatewayGrant
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_time
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
    project_grant,
    read_grant,
)
from gateway_core.oauth.redirects import name_host
from gateway_core.oauth.registration import CLIENTS, mark_authorized
from gateway_core.oauth.revocation import GRANTS, Revocations
from gateway_core.oauth.room import ClientIndex, Room
from gateway_core.oauth.rotation import (
    Issue,
    Lifetimes,
    TokenIssuer,
    TokenResponse,
    is_repetition,
    refuse_grant,
)
from gateway_core.oauth.tokens import ParsedToken, TokenMint
from gateway_core.redis.link import CountersUnavailable

_log = structlog.get_logger(__name__)


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
        self._issuer = TokenIssuer(tokens, peppers, lifetimes)
        self._lifetimes = lifetimes
        self._clock = clock

    def list_of(self, user: str) -> list[GrantRecord]:
        """Return the grants that the user gave, the newest first."""
        return self._index.list_of(user)

    def list_in(self, account: str) -> list[GrantRecord]:
        """Return the grants to the account, the newest first."""
        return self._index.list_in(account)

    def has_given(self, request: AuthorizationRequest, user: str, account: str) -> bool:
        """Return whether the user has given this client as much, so that no page need ask again."""
        host, now = name_host(request.redirect_uri), self._clock()
        return any(
            grant.redirect_host == host
            and grant.scopes.issuperset(request.scopes)
            and min(grant.expires_at, grant.refresh.expires_at) > now
            for grant in self._index.list_same(user, request.client.id, account)
        )

    async def issue_code(self, request: AuthorizationRequest, user: str, account: str) -> str:
        """Return a code for what the user has approved. Unavailable."""
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
        """Return the first tokens of a grant, for a code.

        Raises OAuthError `invalid_grant`, `invalid_request`, `invalid_target`; Unavailable.
        """
        presented, verifier = _require(form, "code"), _require(form, "code_verifier")
        try:
            code = await self._codes.redeem(presented)
            if code is None or code.client_id != client.id:
                raise refuse_grant()
            if not code.is_sent_back_to(form.get("redirect_uri")) or not code.is_answered(verifier):
                raise refuse_grant()
            await self._check_alive(code.user, code.account)
            response = await self._create(client, code)
            await self._codes.check_unreplayed(presented, code)
        except CodeReplayed as replay:
            _log.warning("authorization code presented again", grant=replay.grant)
            await self._revocations.end(replay.grant, "its code was used twice")
            raise refuse_grant() from None
        except CountersUnavailable as error:
            raise _unavailable() from error
        return response

    def name_grant(self, token: str) -> str | None:
        """Return the grant of a refresh token that this gateway issued; None for any other text."""
        parsed = self._tokens.parse(token)
        return None if parsed is None or parsed.kind != "refresh" else parsed.grant

    async def refresh(self, client: ClientRecord, form: Mapping[str, str]) -> TokenResponse:
        """New tokens for a refresh token, which is spent thereby.

        A repetition within the grace gets the same tokens; any other use of a spent token revokes
        the whole grant. Raises OAuthError `invalid_grant`, `invalid_request`, `invalid_scope`;
        Unavailable.
        """
        presented = _require(form, "refresh_token")
        parsed = self._tokens.parse(presented)
        if parsed is None or parsed.kind != "refresh":
            raise refuse_grant()
        now = self._clock()
        issue: Issue | None = None
        if self._revocations.is_ending(parsed.grant):
            raise refuse_grant()

        async def read() -> Object:
            try:
                obj = await self._kube.get(GRANTS.plural, parsed.grant)
            except ObjectNotFound:
                raise refuse_grant() from None
            if project_grant(obj) is None:
                raise refuse_grant()
            await self._check_alive(obj["spec"]["userName"], obj["spec"]["accountName"])
            return obj

        def decide(obj: Object) -> Mapping[str, Any] | None:
            nonlocal issue
            if obj["spec"]["clientId"] != client.id:
                raise refuse_grant()
            issue = self._issuer.advance(obj, presented, form.get("scope"), now)
            return {"spec": issue.spec} if issue is not None and issue.spec is not None else None

        if not self._is_known_reuse(client, parsed, now):
            async with writing(GRANTS, parsed.grant):
                changed = await self._kube.update(GRANTS.plural, read, decide)
            if issue is not None:
                self._table.upsert(changed)
                return issue.response
        _log.warning("refresh token reused: grant revoked", grant=parsed.grant)
        await self._revocations.end(parsed.grant, "a refresh token was used twice")
        raise refuse_grant()

    def _is_known_reuse(self, client: ClientRecord, parsed: ParsedToken, now: float) -> bool:
        """Return whether the table shows a reuse, which counts while the record is away too."""
        known = self._table.get(parsed.grant)
        if known is None or known.client_id != client.id:
            return False
        is_spent = known.refresh.generation > parsed.generation
        return is_spent and not is_repetition(known, parsed.generation, now)

    async def revoke_token(self, client: ClientRecord, token: str) -> None:
        """Revoke a token of the client: a refresh token with its grant, an access token alone.

        Any other token is none of the client's, and nothing happens. Unavailable.
        """
        parsed = self._tokens.parse(token)
        if parsed is None:
            return

        def decide(obj: Object) -> Mapping[str, Any] | None:
            tokens = obj["spec"].get("accessTokens") or []
            stored = zip(tokens, read_grant(obj).access, strict=True)
            kept = [one for one, record in stored if not self._issuer.matches(token, record)]
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
                    await self._revocations.delete(parsed.grant, f"application/{client.name}")
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
        if grant is None:
            return False
        role = user.find_role(grant.account)
        if grant.user != user.name and (role is None or not governs(role)):
            return False
        same = self._index.list_same(grant.user, grant.client_id, grant.account)
        for each in {name, *(record.name for record in same)}:
            await self._revocations.delete(each, f"user/{user.name}")
        return True

    async def _create(self, client: ClientRecord, code: Code) -> TokenResponse:
        await self._room.make(client, code.user, code.account)
        if client.id.startswith(f"{CLIENTS.prefix}_"):
            await mark_authorized(self._kube, client, code.user, self._clock())
        now = self._clock()
        ends = now + self._lifetimes.family
        issue = self._issuer.begin(code.grant, code.scopes, ends, now)
        spec = {
            "userName": code.user,
            "accountName": code.account,
            "clientId": code.client_id,
            "clientName": code.client_name,
            "redirectHost": name_host(code.redirect_uri),
            "scopes": list(code.scopes),
            "resource": code.resource,
            "expirationTime": _format(ends),
            **(issue.spec or {}),
        }
        labels = {ACCOUNT_LABEL: code.account}
        obj = skeleton(GatewayGrant, code.grant, labels=labels, finalizers=[REMAINS_FINALIZER]) | {
            "spec": spec
        }
        async with writing(GRANTS, code.grant):
            made, is_new = await self._kube.create_or_get(GRANTS.plural, obj)
        if not is_new:
            # Redis gave the code out twice: it lost the removal
            raise CodeReplayed(code.grant)
        self._table.upsert(made)
        await self._room.replace(client, code.user, code.account, code.grant)
        return issue.response

    async def _check_alive(self, user_name: str, account_name: str) -> None:
        """Raise `invalid_grant` unless the user is still a member of the account."""

        def is_member(user: UserRecord) -> bool:
            return not user.suspended and user.find_role(account_name) is not None

        user = await find_confirmed(self._users, user_name, is_member)
        account = await find_confirmed(self._accounts, account_name)
        if user is None or account is None or account.suspended:
            raise refuse_grant()


class _Gone(Exception):
    """There is no such grant of the client."""


def _require(form: Mapping[str, str], name: str) -> str:
    value = form.get(name)
    if not value:
        raise OAuthError("invalid_request", f"The parameter {name} is missing.")
    return value


def _format(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))


def _unavailable() -> Unavailable:
    return Unavailable("Authorization is not possible now.")
