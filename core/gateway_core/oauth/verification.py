"""Verification of access tokens, by the process that serves the resource (contract §10.3).

    verifier = TokenVerifier(grants, clients, accounts, users, TokenMint(id_key), peppers,
                             note_use=key_use.note)
    caller = await verifier.verify_access_token(token, audience=settings.mcp_url)
    if "mcp:tasks" in caller.scopes: ...
    policy = await policies.find(caller.principal.key)      # then as with an API key

The four tables are `ReadThrough` of informers: those of GatewayGrant by `project_grant` and of
GatewayOAuthClient by `project_client`, and those of accounts and users that `Authenticator` has
too. A deleted grant or client is refused as soon as the watch says so, or within a second where the
watch is silent.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway_core.accounts.authentication import Principal, find_confirmed, find_current
from gateway_core.accounts.guardrails import NO_RULES
from gateway_core.accounts.records import AccountRecord, KeyRecord, UserRecord
from gateway_core.accounts.roles import act_as
from gateway_core.api.errors import Unauthenticated, Unavailable
from gateway_core.api.key import digest
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.fair_cache import FairCache
from gateway_core.oauth.records import ClientRecord, GrantRecord, StoredToken
from gateway_core.oauth.tokens import ParsedToken, TokenMint

T = TypeVar("T")

GONE_SECONDS = 60.0
"""How long a grant that is gone is not read again; its name never returns."""
MOST_GONE = 10_000
READS_AT_ONCE, READ_SECONDS = 8, 1.0
"""Grants read at a time because the table has none or an older one, and the wait for a turn."""


@dataclass(frozen=True, slots=True)
class TokenPrincipal:
    """An OAuth client that acts for a user in one account.

    `principal` goes wherever that of an API key goes: admission, policies, tasks. Its `key` stands
    for the grant: the grant's object name, no rules of its own, and the user as creator, so charges
    and last uses are recorded under the grant, and a viewer stays a viewer.
    """

    principal: Principal
    scopes: frozenset[str]
    client_id: str


class TokenVerifier:
    """Resolves access tokens to principals. `note_use` gets account and grant of each use."""

    def __init__(
        self,
        grants: ReadThrough[GrantRecord],
        clients: ReadThrough[ClientRecord],
        accounts: ReadThrough[AccountRecord],
        users: ReadThrough[UserRecord],
        mint: TokenMint,
        peppers: Mapping[int, bytes],
        *,
        note_use: Callable[[str, str], None] = lambda _account, _grant: None,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._grants = grants
        self._clients = clients
        self._accounts = accounts
        self._users = users
        self._mint = mint
        self._peppers = peppers
        self._note_use = note_use
        self._clock = clock
        self._gone = FairCache[float](MOST_GONE)
        self._turns = FairSemaphore(
            READS_AT_ONCE, alone=READS_AT_ONCE, seconds=READ_SECONDS, error=_unavailable
        )

    async def verify_access_token(self, token: str, audience: str) -> TokenPrincipal:
        """Return the caller of an access token that was issued for `audience`, a bare origin.

        Raises:
            Unauthenticated: code `invalid_token`: malformed, forged, expired, revoked, for another
                audience; or its user is suspended or no member of the account any more, its account
                suspended, its client deleted. One text for all.
            Unavailable: the tables are not read yet, or the Kubernetes API is silent for too long.
        """
        parsed = self._mint.parse(token)
        if parsed is None or parsed.kind != "access" or parsed.expires_at <= self._clock():
            raise _invalid()
        tables = (self._grants, self._clients, self._accounts, self._users)
        if not all(known.table.synced for known in tables):
            raise Unavailable("The gateway is starting.", retry_after=1)
        grant = await self._find_grant(parsed)
        now = self._clock()
        if grant is None or grant.resource != audience or grant.expires_at <= now:
            raise _invalid()
        stored = next((one for one in grant.access if self._matches(one, parsed, token)), None)
        if stored is None or stored.expires_at <= now:
            raise _invalid()
        return TokenPrincipal(await self._find_principal(grant), stored.scopes, grant.client_id)

    async def _find_grant(self, parsed: ParsedToken) -> GrantRecord | None:
        """Return the token's grant; read by name where the token is newer than the table."""

        def is_recent(grant: GrantRecord) -> bool:
            return grant.refresh.generation >= parsed.generation

        grant = await find_current(self._grants, parsed.grant)
        if grant is not None and is_recent(grant):
            return grant
        # the tag shows that this gateway issued it: the watch is behind, or the grant is gone
        if (self._gone.get(parsed.grant) or 0.0) > self._clock():
            return None
        async with self._turns.take("all"):
            try:
                found = await self._grants.read(parsed.grant, is_recent)
            except KubernetesUnavailable as error:
                raise _unavailable() from error
        if found is None:
            self._gone.put(parsed.grant, self._clock() + GONE_SECONDS, "all")
        return found

    def _matches(self, stored: StoredToken, parsed: ParsedToken, token: str) -> bool:
        pepper = self._peppers.get(stored.pepper_version)
        if pepper is None or stored.generation != parsed.generation:
            return False
        return hmac.compare_digest(digest(token, pepper), stored.digest)

    async def _find_principal(self, grant: GrantRecord) -> Principal:
        if not grant.client_id.startswith("https://"):
            name = grant.client_id.replace("_", "-", 1)
            if await find_confirmed(self._clients, name) is None:
                raise _invalid()

        def is_member(user: UserRecord) -> bool:
            return not user.suspended and user.find_role(grant.account) is not None

        account = await find_confirmed(self._accounts, grant.account)
        user = await find_confirmed(self._users, grant.user, is_member)
        if account is None or account.suspended or user is None:
            raise _invalid()
        role = user.find_role(account.name)
        if role is None:
            raise _invalid()
        self._note_use(account.name, grant.name)
        return Principal(account, _stand_in(grant), act_as("Standard", role), user)


def _stand_in(grant: GrantRecord) -> KeyRecord:
    """Return the grant as a key without a secret."""
    return KeyRecord(
        name=grant.name,
        account=grant.account,
        key_class="Standard",
        creator=grant.user,
        usable=True,
        revoked=False,
        expires_at=grant.expires_at,
        tokens=(),
        rules=NO_RULES,
    )


def _unavailable() -> Unavailable:
    return Unavailable("Tokens cannot be checked now.", retry_after=1)


def _invalid() -> Unauthenticated:
    return Unauthenticated("The access token is not valid.", code="invalid_token")
