"""Removes OAuth clients that nobody has authorized, and grants that can give no access any more.

A grant goes when it has expired, or its user, membership, account or client is gone. A client that
registered itself goes a day later where no user has given it access, or half a year after its last
grant ended, or as soon as its first user has left 20 newer ones without a grant. Clients that an
admin declared stay; a finalizer keeps a deleted one until no grant is left to the next of its name.
The sweep also copies the last uses of grants from the counters into their status, as those of keys.
Tokens are refused without it: it bounds what is stored.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog

from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.ids import REMAINS_FINALIZER, name_to_id
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time, parse_time
from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import list_pages
from gateway_operator.accounts.balances import COPY_SECONDS
from gateway_operator.accounts.kinds import find_role
from gateway_operator.context import Context
from gateway_operator.retention.objects import Deletions, Listed
from gateway_operator.schedule import Sweep

UNUSED = timedelta(hours=24)
"""Life of a client that no user has given access (contract §10.5)."""
FORGOTTEN = timedelta(days=180)
"""Life of a client without a grant: it keeps its id, and asks for access again."""
MOST_LEFT = 20
"""Clients without a grant that are kept for the user who approved them first."""
SIGHT = timedelta(minutes=5)
"""Age of a grant from which what it names must have been seen here."""

_log = structlog.get_logger(__name__)


class OAuthRemoval:
    """Sweeps over all clients and grants, page by page."""

    def __init__(
        self,
        context: Context,
        counters: Counters,
        accounts: Cache[GatewayAccount],
        users: Cache[GatewayUser],
    ) -> None:
        self._kube = context.kube
        self._termination = context.termination
        self._now = context.now
        self._deletions = Deletions(context.kube, context.failpoints)
        self._counters = counters
        self._accounts = accounts
        self._users = users

    async def sweep(self) -> int:
        """Remove what is due; how many. KubernetesError, CountersUnavailable."""
        known, leaving = set[str](), set[str]()
        async for page in list_pages(self._kube, GatewayOAuthClient.plural, metadata_only=True):
            for obj in page.items:
                is_leaving = "deletionTimestamp" in obj["metadata"]
                (leaving if is_leaving else known).add(name_to_id(obj["metadata"]["name"]))
        seen = await self._sweep_grants(known, leaving)
        removed = await self._deletions.delete(GatewayGrant.plural, seen.due)
        removed += await self._sweep_clients(seen)
        if removed:
            _log.info("clients and grants removed", objects=removed)
        return removed

    async def _sweep_grants(self, clients: set[str], leaving: set[str]) -> "_Seen":
        seen = _Seen()
        live: defaultdict[str, list[Object]] = defaultdict(list)
        # without their CRD there are no grants, and clients must not wait for any
        with suppress(ObjectNotFound):
            async for page in list_pages(self._kube, GatewayGrant.plural):
                for obj in page.items:
                    client = obj["spec"]["clientId"]
                    seen.clients.add(client)
                    if client in leaving or self._is_over(obj, clients):
                        created = parse_time(obj["metadata"]["creationTimestamp"])
                        seen.due.append(Listed.read(obj["metadata"], created))
                    else:
                        live[obj["spec"]["accountName"]].append(_shorten(obj))
        for account, grants in live.items():
            names = [grant["metadata"]["name"] for grant in grants]
            used = await self._counters.read_used(account, names)
            for grant in grants:
                await self._note_use(grant, used, seen)
        return seen

    async def _note_use(self, grant: Object, used: Mapping[str, float], seen: "_Seen") -> None:
        """Write the last use of a grant where the counters know a later one."""
        meta, status = grant["metadata"], grant["status"]
        shown = parse_time(status.get("lastUsedTime"))
        at = datetime.fromtimestamp(int(used.get(meta["name"], 0.0)), UTC)
        client = grant["clientId"]
        latest = max(shown, at, parse_time(meta["creationTimestamp"]))
        seen.last_uses[client] = max(latest, seen.last_uses.get(client, latest))
        if at > shown:
            await self._write(GatewayGrant.plural, grant, at)

    async def _sweep_clients(self, seen: "_Seen") -> int:
        due: list[Listed] = []
        left: defaultdict[str, list[tuple[datetime, Listed]]] = defaultdict(list)
        async for page in list_pages(self._kube, GatewayOAuthClient.plural):
            for obj in page.items:
                meta, spec = obj["metadata"], obj["spec"]
                created = parse_time(meta["creationTimestamp"])
                shown = parse_time((obj.get("status") or {}).get("lastUsedTime"))
                client = name_to_id(meta["name"])
                if not spec.get("dynamic"):
                    await self._guard(obj, has_grants=client in seen.clients)
                used = seen.last_uses.get(client)
                if used is not None:
                    if used > shown:
                        await self._write(GatewayOAuthClient.plural, obj, used)
                    continue
                if not spec.get("dynamic"):
                    continue
                latest = max(created, shown, parse_time(spec.get("lastAuthorizedTime")))
                entry = Listed.read(meta, created)
                if latest + (FORGOTTEN if spec.get("authorized") else UNUSED) < self._now():
                    due.append(entry)
                elif spec.get("authorized") and latest + SIGHT < self._now():
                    left[spec.get("authorizedBy", "")].append((latest, entry))
        for entries in left.values():
            entries.sort(key=lambda entry: entry[0], reverse=True)
            due += [entry for _, entry in entries[MOST_LEFT:]]
        # a client that is authorized meanwhile has another version, and stays
        return await self._deletions.delete(GatewayOAuthClient.plural, due)

    async def _guard(self, obj: Object, *, has_grants: bool) -> None:
        """Add the finalizer to a client; remove it from a deleted one that has no grants."""
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or []
        is_leaving, is_guarded = "deletionTimestamp" in meta, REMAINS_FINALIZER in finalizers
        is_ending = self._termination.covers(GatewayOAuthClient.plural)
        if is_leaving and is_guarded and (is_ending or not has_grants):
            wanted = [name for name in finalizers if name != REMAINS_FINALIZER]
        elif not is_leaving and not is_guarded and not is_ending:
            wanted = [*finalizers, REMAINS_FINALIZER]
        else:
            return
        patch = {"metadata": {"finalizers": wanted}}
        with suppress(WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            await self._kube.patch(GatewayOAuthClient.plural, obj, patch)

    async def _write(self, plural: str, obj: Object, used: datetime) -> None:
        try:
            await self._kube.patch_status(plural, obj, {"lastUsedTime": format_time(used)})
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            # it has just changed: the next sweep writes it
            return

    def _is_over(self, obj: Object, clients: set[str]) -> bool:
        spec, now = obj["spec"], self._now()
        ends = min(
            parse_time(spec["expirationTime"]), parse_time(spec["refreshToken"]["expirationTime"])
        )
        if ends <= now:
            return True
        if parse_time(obj["metadata"]["creationTimestamp"]) + SIGHT > now:
            return False
        user = self._users.get(spec["userName"])
        is_member = user is not None and find_role(user, spec["accountName"]) is not None
        is_document = spec["clientId"].startswith("https://")
        has_client = is_document or spec["clientId"] in clients
        return not (is_member and has_client and self._accounts.get(spec["accountName"]))


@dataclass(slots=True)
class _Seen:
    """Clients with a grant, grants that are due, and the last use of each client with another."""

    clients: set[str] = field(default_factory=set)
    due: list[Listed] = field(default_factory=list)
    last_uses: dict[str, datetime] = field(default_factory=dict)


def _shorten(obj: Object) -> Object:
    """Return the part of a grant that the sweep keeps, without its digests."""
    meta = obj["metadata"]
    kept = {name: meta[name] for name in ("name", "resourceVersion", "creationTimestamp")}
    return {
        "metadata": kept,
        "status": obj.get("status") or {},
        "clientId": obj["spec"]["clientId"],
    }


def plan_oauth(
    context: Context,
    counters: Counters,
    accounts: Cache[GatewayAccount],
    users: Cache[GatewayUser],
) -> Sweep:
    """Return the sweep and its pace, that of the last use of keys."""
    removal = OAuthRemoval(context, counters, accounts, users)
    return Sweep("OAuth clients and grants", removal.sweep, COPY_SECONDS)
