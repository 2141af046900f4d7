"""The sweeps of retention, of which the owner of shard 0 runs each at its own pace.

Expired bytes go by their age alone, since none is needed later than 30 days after it was last
written. So bytes that belong to no task (an input that lost a race, an output of a cancelled copy)
are removed with the rest. The cost of runs is kept in the usage, not here.

Revoked keys go beyond the number that an account keeps, those revoked first. A key that an admin
declared with `spec.secretName` stays: the next `kubectl apply` would make it anew. Each key is
removed from the guardrails that name it before it is deleted, so that no place of a guardrail is
lost. Its finalizer keeps it until it is archived, so that a repeated create still finds it.

The size of the database is that of its file, as etcd's own quota counts it. Intake stops before it
is full: work in progress needs space to be written to its end. The file shrinks by defragmentation
alone, so intake resumes after that and not as soon as objects are removed.
"""

import heapq
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog

from gateway_core.accounts.changes import GATEWAY, note_ending
from gateway_core.accounts.remains import REMOVED_PREFIXES
from gateway_core.admission.intake import IntakeStop
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REMAINS_FINALIZER, REVOKED_AT_ANNOTATION
from gateway_core.api.key import MOST_REVOKED, GatewayKey
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.informer import Cache
from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.archive import HISTORY_PREFIX
from gateway_operator.context import Context
from gateway_operator.files.storage import delete_all
from gateway_operator.metrics import Metrics
from gateway_operator.retention.objects import (
    BATCHES,
    MOST_ENDED,
    TASKS,
    UPLOADS,
    Deletions,
    EndedRemoval,
    Listed,
    RetentionRules,
)
from gateway_operator.retention.usage import DayClosing
from gateway_operator.schedule import Sweep
from gateway_operator.settings import Settings
from gateway_operator.uploads.controller import UploadController

_log = structlog.get_logger(__name__)


class RevokedKeys:
    """Sweeps over the table of keys. Safe to run concurrently and to be cancelled."""

    def __init__(
        self,
        kube: KubernetesClient,
        deletions: Deletions,
        keys: Cache[GatewayKey],
        guardrails: Cache[GatewayGuardrail],
        *,
        most: int = MOST_REVOKED,
    ) -> None:
        self._kube = kube
        self._deletions = deletions
        self._keys = keys
        self._guardrails = guardrails
        self._most = most

    async def sweep(self) -> int:
        """Remove what is due; how many. KubernetesError, StoreUnavailable."""
        revoked: defaultdict[str, list[GatewayKey]] = defaultdict(list)
        for _, key in list(self._keys.items()):
            if key.spec.revoked and key.spec.secret_name is None:
                revoked[key.spec.account_name].append(key)
        removed = 0
        for account, keys in revoked.items():
            due = sorted(keys, key=_find_order)[: max(0, len(keys) - self._most)]
            if not due:
                continue
            try:
                removed += await self._remove(account, {key.metadata.name for key in due})
            except RequestRejected as error:
                _log.warning("revoked keys not removed", account=account, error=str(error))
        if removed:
            _log.info("revoked keys removed", keys=removed)
        return removed

    async def _remove(self, account: str, names: set[str]) -> int:
        assigned = await self._unassign(account, names)
        due: list[Listed] = []
        for name in sorted(names - assigned):
            try:
                obj = await self._kube.get(GatewayKey.plural, name)
            except ObjectNotFound:
                continue
            # another of its name, made since
            spec, meta = obj["spec"], obj["metadata"]
            if not spec.get("revoked") or spec["accountName"] != account:
                continue
            if "deletionTimestamp" in meta:
                continue
            change = {
                "annotations": note_ending(
                    GATEWAY, f"deleted: {self._most} newer ones are revoked"
                ),
                # one of an earlier release may lack it
                "finalizers": [*{*(meta.get("finalizers") or ()), REMAINS_FINALIZER}],
            }
            try:
                noted = await self._kube.patch(GatewayKey.plural, obj, {"metadata": change})
            except (ObjectNotFound, WriteConflict):
                continue
            meta = noted["metadata"]
            due.append(Listed.read(meta, parse_time(meta["creationTimestamp"])))
        return await self._deletions.delete(GatewayKey.plural, due)

    async def _unassign(self, account: str, names: set[str]) -> set[str]:
        """Remove the keys from the account's guardrails; the keys that are still in one.

        These wait for the next sweep: once a key is gone, no sweep looks for its name.
        """
        assigned: set[str] = set()
        for name, guardrail in list(self._guardrails.items()):
            if guardrail.spec.account_name != account:
                continue
            held = names.intersection(guardrail.spec.key_names or ())
            if not held:
                continue
            try:
                obj = await self._kube.get(GatewayGuardrail.plural, name)
                left = [key for key in obj["spec"].get("keyNames") or () if key not in names]
                await self._kube.patch(GatewayGuardrail.plural, obj, {"spec": {"keyNames": left}})
            except ObjectNotFound:
                continue
            except (WriteConflict, WriteOutcomeUnknown, RequestRejected) as error:
                _log.info("revoked keys are still assigned", guardrail=name, error=str(error))
                assigned |= held
        return assigned


def _find_order(key: GatewayKey) -> tuple[str, str]:
    """When it was revoked, as far as known; times of this form sort as text."""
    noted = key.metadata.annotations.get(REVOKED_AT_ANNOTATION, "")
    return noted or key.metadata.creation_timestamp or "", key.metadata.name


PREFIXES = ("inputs/", "media/", "tasks/", HISTORY_PREFIX, *REMOVED_PREFIXES.values())


@dataclass(eq=False)
class Expiry:
    """Sweeps over the object store, page by page."""

    store: ObjectStore
    rules: RetentionRules
    now: Callable[[], datetime]

    async def sweep(self) -> int:
        """Remove what is due; how many objects. StoreUnavailable: the next sweep starts anew."""
        oldest = self.now() - timedelta(seconds=self.rules.results)
        removed = 0
        for prefix in PREFIXES:
            entries = self.store.list_entries(prefix)
            due = (entry.key async for entry in entries if entry.modified < oldest)
            removed += await delete_all(self.store, due)
        if removed:
            _log.info("bytes of the past removed", objects=removed)
        return removed


class RemovedTrim:
    """Bounds the remains of removed keys and guardrails: of each kind, `most` of an account.

    Memory: `most` entries of one account, since a store lists keys in their order.
    """

    def __init__(self, store: ObjectStore, *, most: int = MOST_ENDED) -> None:
        self._store = store
        self._most = most

    async def sweep(self) -> int:
        """Remove the oldest beyond `most`; how many. StoreUnavailable."""
        prefixes = REMOVED_PREFIXES.values()
        return sum([await delete_all(self._store, self._list_due(prefix)) for prefix in prefixes])

    async def _list_due(self, prefix: str) -> AsyncIterator[str]:
        folder, newest = "", list[tuple[datetime, str]]()
        async for entry in self._store.list_entries(prefix):
            if (own := entry.key.rpartition("/")[0]) != folder:
                folder, newest = own, []
            if len(newest) < self._most:
                heapq.heappush(newest, (entry.modified, entry.key))
            else:
                yield heapq.heappushpop(newest, (entry.modified, entry.key))[1]


MARK_SECONDS = 90
"""The mark expires unless it is set again: three samples may fail before intake resumes."""


class DatabaseSize:
    """Compares the size of the Kubernetes API's database with its quota. `quota` is in bytes."""

    def __init__(
        self,
        read_etcd_size: Callable[[], Awaitable[int]],
        stop: IntakeStop,
        metrics: Metrics,
        *,
        quota: int,
        stop_percent: int,
    ) -> None:
        self._read_size = read_etcd_size
        self._stop = stop
        self._metrics = metrics
        self._quota = quota
        self._most = quota * stop_percent // 100
        self._stopped = False
        metrics.record_quota.set(quota)

    async def sample(self) -> int:
        """Set or clear the mark; 1 where intake is stopped."""
        size = await self._read_size()
        self._metrics.record_size.set(size)
        stopped = size >= self._most
        if stopped:
            await self._stop.set(MARK_SECONDS)
        else:
            await self._stop.clear()
        if stopped is not self._stopped:
            self._stopped = stopped
            _log.warning("intake by size of the record", stopped=stopped, bytes=size)
        return int(stopped)


CLOSING_SECONDS = 3600.0
EXPIRY_SECONDS = 6 * 3600.0


def plan_sweeps(
    context: Context,
    settings: Settings,
    keys: Cache[GatewayKey],
    guardrails: Cache[GatewayGuardrail],
    uploads: UploadController,
    intake_stop: IntakeStop,
) -> tuple[Sweep, ...]:
    """Return the sweeps of removal; and the sample of etcd's size, if its quota is set."""
    kube, store, now, rules = context.kube, context.store, context.now, settings.rules
    deletions = Deletions(kube, context.failpoints)
    remove = partial(EndedRemoval, kube, deletions, now=now)
    tasks = remove(
        TASKS,
        kept_seconds=rules.finished,
        most=rules.most,
        least_seconds=rules.least,
        note_kept=context.metrics.finished.set,
        note_removed=context.metrics.removed.inc,
    )
    batches = remove(BATCHES, kept_seconds=rules.batches, most=rules.ended)
    ended = remove(UPLOADS, kept_seconds=rules.uploads, most=rules.ended, resume=uploads.queue.add)
    revoked = RevokedKeys(kube, deletions, keys, guardrails)
    sweeps = (
        Sweep("finished tasks", tasks.sweep, settings.sweep_seconds),
        Sweep("days of usage", DayClosing(kube, store, rules, now).sweep, CLOSING_SECONDS),
        Sweep("ended batches", batches.sweep, settings.sweep_seconds),
        Sweep("ended uploads", ended.sweep, settings.sweep_seconds),
        Sweep("revoked keys", revoked.sweep, settings.sweep_seconds),
        Sweep("removed keys and guardrails", RemovedTrim(store).sweep, CLOSING_SECONDS),
        Sweep("bytes of the past", Expiry(store, rules, now).sweep, EXPIRY_SECONDS),
    )
    if not settings.record_quota_bytes:
        return sweeps
    size = DatabaseSize(
        kube.read_etcd_size,
        intake_stop,
        context.metrics,
        quota=settings.record_quota_bytes,
        stop_percent=settings.record_stop_percent,
    )
    return (*sweeps, Sweep("record size", size.sample, settings.record_seconds))
