"""Bounds of what users make by approving clients: grants, and clients that have none left."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nsmallest

import structlog

from gateway_core.accounts.changes import GATEWAY
from gateway_core.api.errors import TooManyCalls
from gateway_core.api.times import parse_time
from gateway_core.kube.informer import Cache
from gateway_core.oauth.records import ClientRecord, GrantIndex, GrantRecord
from gateway_core.oauth.revocation import ENDED, Revocations

MOST_GRANTS = 100
"""Grants of one user."""
MOST_ACCOUNT_GRANTS = 1000
"""Grants to one account."""
MOST_SHARED = 8
"""Grants of one user, client and account where one client id serves many installations. A client
that registered itself is one installation, and has one."""
MOST_IDLE_CLIENTS = 100
"""Clients without a grant that one user was the first to approve; the operator keeps 20."""
RETRY_SECONDS = 300

_log = structlog.get_logger(__name__)


class ClientIndex:
    """Clients that registered themselves: those unused, and others by who first approved them."""

    def __init__(self, table: Cache[ClientRecord]) -> None:
        self._table = table
        self._group_of: dict[str, str] = {}
        self._groups = defaultdict[str, set[str]](set)
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    @property
    def unused(self) -> int:
        """How many no user has given access to."""
        return len(self._groups.get("", ()))

    def list_unused(self, before: float, most: int) -> list[tuple[str, ClientRecord]]:
        """Return names and records of the oldest unused ones that were created until then."""
        found = ((name, self._table.get(name)) for name in self._groups.get("", ()))
        old = [
            (name, each) for name, each in found if each is not None and each.created_at <= before
        ]
        return nsmallest(most, old, key=lambda entry: entry[1].created_at)

    def forget(self, name: str) -> None:
        """Leave out a client that has been deleted, before the watch says so."""
        group = self._group_of.pop(name, None)
        if group is not None:
            self._groups[group].discard(name)
            if not self._groups[group]:
                del self._groups[group]

    def list_of(self, user: str) -> list[ClientRecord]:
        """Return those that the user was the first to approve."""
        found = map(self._table.get, self._groups.get(user, ()))
        return [client for client in found if client is not None]

    def _follow(self, name: str) -> None:
        self.forget(name)
        record = self._table.get(name)
        if record is not None and record.dynamic:
            group = (record.authorized_by or "?") if record.authorized else ""
            self._group_of[name] = group
            self._groups[group].add(name)


class Room:
    """Makes room for a new grant, which takes the place of the one that was used least recently."""

    def __init__(self, grants: GrantIndex, clients: ClientIndex, revocations: Revocations) -> None:
        self._grants = grants
        self._clients = clients
        self._revocations = revocations

    async def make(self, client: ClientRecord, user: str, account: str) -> None:
        """Before the grant is created. TooManyCalls, Unavailable."""
        if client.dynamic and not client.authorized:
            known = self._clients.list_of(user)
            idle = sum(not self._grants.has_client(each.id) for each in known)
            if idle >= MOST_IDLE_CLIENTS:
                _log.warning("grant refused: too many clients without one", user=user)
                raise TooManyCalls("Too many applications.", retry_after=RETRY_SECONDS)
        for grant in choose_spare(self._grants.list_of(user), MOST_GRANTS - 1):
            await self._delete(grant, "the user has too many")
        for grant in choose_spare_of_many(self._grants.list_in(account), MOST_ACCOUNT_GRANTS - 1):
            await self._delete(grant, "the account has too many")

    async def replace(self, client: ClientRecord, user: str, account: str, new: str) -> None:
        """After the grant `new` is created: it replaces others of the same three. Unavailable."""
        same = self._grants.list_same(user, client.id, account)
        others = [grant for grant in same if grant.name != new]
        kept = 0 if client.dynamic else MOST_SHARED - 1
        for grant in choose_spare(others, kept):
            await self._delete(grant, "it was given anew")

    async def _delete(self, grant: GrantRecord, reason: str) -> None:
        _log.info("grant replaced by a newer one", user=grant.user, grant=grant.name)
        await self._revocations.delete(grant.name, GATEWAY, f"{ENDED}: {reason}")


def choose_spare(grants: Iterable[GrantRecord], most: int) -> list[GrantRecord]:
    """Return the grants beyond so many, those used least recently."""
    found = sorted(grants, key=_find_last_use)
    return found[: max(0, len(found) - most)]


def choose_spare_of_many(grants: Iterable[GrantRecord], most: int) -> list[GrantRecord]:
    """Return the same of several users: of who has most, so that none displaces others'."""
    left = sorted(grants, key=_find_last_use)
    held, spare = Counter(grant.user for grant in left), list[GrantRecord]()
    while len(left) > most:
        [(user, _)] = held.most_common(1)
        grant = next(grant for grant in left if grant.user == user)
        left.remove(grant)
        held[user] -= 1
        spare.append(grant)
    return spare


def _find_last_use(grant: GrantRecord) -> float:
    return max(grant.last_used_at, parse_time(grant.created_at).timestamp())
