"""Archives the rows that the audit has of keys, guardrails and grants, before these are deleted.

Whoever deletes one, a finalizer keeps the object until its rows are in the object store, also while
no operator runs. Every process takes an object whose deletion has begun for deleted. A step can be
repeated: the rows follow from the object, and are stored under its name.

The watches have metadata alone, and keep only objects with something to do.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from gateway_core.accounts.changes import (
    GATEWAY,
    UNKNOWN_END,
    Change,
    list_changes,
    read_ending,
)
from gateway_core.accounts.remains import archive_removed
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REMAINS_FINALIZER, UNCHECKED_ANNOTATION
from gateway_core.api.key import GatewayKey
from gateway_core.api.oauth import GatewayGrant
from gateway_core.api.resource import Object
from gateway_core.api.times import parse_time
from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache, Informer
from gateway_core.oauth.records import list_grant_changes, read_grant
from gateway_core.oauth.revocation import ENDED, REVOKED
from gateway_core.redis.link import CountersUnavailable
from gateway_operator.accounts.kinds import find_role
from gateway_operator.context import Context
from gateway_operator.reconciler import WorkQueue

KINDS = (GatewayKey.plural, GatewayGuardrail.plural, GatewayGrant.plural)
AT_ONCE = 8
"""Objects that are written at the same time: an upgrade finds all without the finalizer."""


@dataclass(frozen=True, slots=True)
class Due:
    """Work for an object: to give it the finalizer, or to archive its rows."""

    is_deleted: bool
    version: str
    finalizers: tuple[str, ...]


def find_due(obj: Object) -> Due | None:
    """Return what is to be done for an object, from its metadata; None for nothing."""
    meta = obj["metadata"]
    finalizers = tuple(meta.get("finalizers") or ())
    is_deleted = "deletionTimestamp" in meta
    # a guardrail whose name may be taken was never there
    is_unchecked = UNCHECKED_ANNOTATION in (meta.get("annotations") or {})
    if is_deleted is not (REMAINS_FINALIZER in finalizers) or (is_unchecked and not is_deleted):
        return None
    return Due(is_deleted, meta["resourceVersion"], finalizers)


def follow_histories(kube: KubernetesClient) -> dict[str, Informer[Due]]:
    """Return the watches, by the plural of their kind."""
    return {plural: Informer(kube, plural, find_due, metadata_only=True) for plural in KINDS}


@dataclass(eq=False)
class Histories:
    """Guards the objects by the finalizer, and archives the rows of deleted ones.

    Run by the owner of shard 0. `due` are the watches by plural.
    """

    context: Context
    counters: Counters
    users: Cache[GatewayUser]
    accounts: Cache[GatewayAccount]
    due: dict[str, Cache[Due]]
    queue: WorkQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self._work)
        self._turns = asyncio.Semaphore(AT_ONCE)
        for plural, table in self.due.items():
            table.subscribe(partial(self._notice, plural))

    def look_again(self) -> None:
        """Reconcile the deleted objects, whose kind may be terminating."""
        for plural, table in self.due.items():
            for name in list(dict(table.items())):
                self._notice(plural, name)

    def _notice(self, plural: str, name: str) -> None:
        if self.due[plural].get(name) is not None:
            self.queue.add(f"{plural}/{name}")

    async def _work(self, path: str) -> None:
        """Do what is due. Raises what the stores raise."""
        plural, _, name = path.partition("/")
        async with self._turns:
            due = self.due[plural].get(name)
            if due is None:
                return
            # the watch shows the newer version
            with suppress(WriteConflict, ObjectNotFound):
                if due.is_deleted:
                    await self._archive(plural, name)
                elif not self.context.termination.covers(plural):
                    guarded = [*due.finalizers, REMAINS_FINALIZER]
                    await self._write(plural, name, due.version, guarded)

    async def _archive(self, plural: str, name: str) -> None:
        context = self.context
        obj = await context.kube.get(plural, name)
        if "deletionTimestamp" not in obj["metadata"]:
            return
        with context.termination.giving_up(plural, obj, "its rows of the audit"):
            rows = await self._list_rows(plural, obj)
            await archive_removed(context.store, plural, obj["spec"]["accountName"], obj, rows)
        context.failpoints.reach("after-history")
        meta = obj["metadata"]
        kept = [one for one in meta.get("finalizers") or () if one != REMAINS_FINALIZER]
        await self._write(plural, name, meta["resourceVersion"], kept)

    async def _write(self, plural: str, name: str, version: str, finalizers: list[str]) -> None:
        present = {"metadata": {"name": name, "resourceVersion": version}}
        await self.context.kube.patch(plural, present, {"metadata": {"finalizers": finalizers}})

    async def _list_rows(self, plural: str, obj: Object) -> list[Change]:
        if plural != GatewayGrant.plural:
            return [*list_changes(obj), read_ending(obj)]
        grant = read_grant(obj)
        used = dict[str, float]()
        # the operator's last copy is good enough where Redis is away
        with suppress(CountersUnavailable):
            used = dict(await self.counters.read_used(grant.account, [grant.name]))
        known = list_grant_changes(grant, used.get(grant.name, 0.0))
        return [*known, read_ending(obj, self._explain(obj))]

    def _explain(self, obj: Object) -> tuple[str, str]:
        """By whom a grant has ended, and why, where nobody has noted it."""
        spec, deleted = obj["spec"], parse_time(obj["metadata"]["deletionTimestamp"])
        ends = (spec["expirationTime"], spec["refreshToken"]["expirationTime"])
        if min(map(parse_time, ends)) <= deleted:
            return GATEWAY, "access expired"
        user = self.users.get(spec["userName"])
        if user is None or user.metadata.deletion_timestamp is not None:
            return GATEWAY, f"{ENDED}: its user was removed"
        if find_role(user, spec["accountName"]) is None:
            return GATEWAY, f"{ENDED}: its user is no member any more"
        return UNKNOWN_END[0], REVOKED
