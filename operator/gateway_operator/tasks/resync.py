"""Resync: repairs what watch events have missed.

Missed versions, tasks that have ended and were not closed, holds without a run. Each sweep compares
the Kubernetes API with memory. Safe to run twice and on several replicas.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import CHARGED, FOLDED_LABEL, is_batch, is_call
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.charges import ENDED_PHASES
from gateway_core.billing.counters import Hold
from gateway_core.billing.ledger import read_entry
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.usage_store import select_unaggregated
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.lists import list_pages
from gateway_core.redis.link import CountersStale
from gateway_core.tasks.archive import read_archived
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.context import Context
from gateway_operator.schedule import Sweep
from gateway_operator.tasks.controller import TaskController

REVIEW_SECONDS = 600.0
HOLD_SECONDS = 120.0
"""How long a hold may be without an object: longer than a create can take."""

LATE_SECONDS = 60.0
"""A hold that was taken so long after its task's end is a late owner's: the charge is counted.

A rebuild takes holds of tasks that have ended since it began too: 30 s ago at most.
"""

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Resync:
    """Sweeps over tasks and holds of this replica's shards, the first time right at the start."""

    context: Context
    tasks: TaskController
    counters: Counters
    _suspects: dict[str, int] = field(default_factory=dict, init=False)
    missed: int = field(default=0, init=False)

    def plan(self, seconds: float) -> tuple[Sweep, ...]:
        """Return the sweeps, `seconds` apart.

        Those of ended tasks, which may be many, run less often.
        """
        review = max(REVIEW_SECONDS, seconds)
        return (
            Sweep("open_tasks", self.sweep_open_tasks, seconds, first_seconds=0.0),
            Sweep("holds", self.sweep_holds, seconds, first_seconds=0.0),
            Sweep(
                "ended_tasks",
                self.sweep_ended_tasks,
                review,
                first_seconds=0.0,
                retry_seconds=seconds,
            ),
        )

    async def sweep_open_tasks(self) -> int:
        """Find open tasks whose newest version the watch has not shown; how many it repaired.

        A version is missed only if two sweeps in a row know of it and memory does not: events are
        in flight all the time. Tasks in memory that do not exist any more are dropped.
        """
        cache, behind, seen = self.tasks.cache, dict[str, int](), set[str]()
        known_before = set(cache.names())
        async for meta in self._list(OPEN_SELECTOR):
            name, version = meta["name"], int(meta["resourceVersion"])
            seen.add(name)
            if cache.version(name) < version:
                # also where its event is still on the way, which the next sweep tells apart
                behind[name] = version
        missed = [name for name, version in behind.items() if self._suspects.get(name) == version]
        # known before the list began: tasks created since are not in it
        vanished = [name for name in known_before - seen if name in cache]
        self._suspects = behind
        for name in (*missed, *vanished):
            await self._reread(name)
        if missed:
            self.missed += len(missed)
            self.context.metrics.repairs.inc(len(missed))
            _log.warning("the watch has missed changes", objects=len(missed), first=missed[0])
        return len(missed)

    async def sweep_ended_tasks(self) -> int:
        """Reconcile tasks that have ended and were not closed; how many there were."""
        found = 0
        for labels in (select_unaggregated(), f"{FOLDED_LABEL}={CHARGED}"):
            async for meta in self._list("status.work=Settled", labels):
                if meta["name"] not in self.tasks.cache:
                    await self._reread(meta["name"])
                    found += 1
        return found

    async def sweep_holds(self) -> int:
        """End holds whose run has ended, or was never recorded; how many there were.

        Each replica handles the tasks of its shards, which it mostly has in memory. The process of
        a call renews its hold, so an old hold's process is gone, or cannot reach the counters: what
        it has reported of the call is in the journal, from which the account is rebuilt.
        """
        ended, running, unaccounted = 0, 0.0, 0.0
        for account in await self.counters.list_accounts():
            try:
                holds = await self.counters.list_holds(account, HOLD_SECONDS)
                holds = [hold for hold in holds if self.context.shards.owns_name(hold.task)]
                calls = sum(is_call(hold.task) for hold in holds)
                for hold in holds:
                    if is_call(hold.task):
                        continue
                    if self._is_running(hold.task):
                        running = max(running, hold.age)
                    elif await self._end_hold(account, hold):
                        ended += 1
                    elif is_batch(hold.task):
                        running = max(running, hold.age)
                    else:
                        unaccounted = max(unaccounted, hold.age)
                if calls:
                    await self.counters.mark_stale(account)
                    ended += calls
            except CountersStale:
                continue
        self.context.metrics.show_oldest_holds(running, unaccounted)
        if ended:
            self.context.metrics.stray_holds.inc(ended)
            _log.info("stray holds ended", holds=ended)
        return ended

    def _is_running(self, name: str) -> bool:
        """Return whether the task is known to be open here, which saves reading it."""
        task = self.tasks.cache.get(name)
        return task is not None and task.status.phase not in ENDED_PHASES

    async def _reread(self, name: str) -> None:
        await self.tasks.writer.refresh(name)
        self.tasks.queue.add(name)

    async def _end_hold(self, account: str, hold: Hold) -> bool:
        obj = await self._find(account, hold.task)
        if obj is not None and (obj.get("status") or {}).get("phase") not in ENDED_PHASES:
            return False
        now = self.context.now()
        charged, ended = (read_entry(obj).charged, _read_end(obj)) if obj else (0, None)
        at = ended or now
        if hold.age < (now - at).total_seconds() - LATE_SECONDS:
            charged = 0
        return await self.counters.settle(account, hold.task, charged, at)

    async def _find(self, account: str, name: str) -> Object | None:
        kind = GatewayBatch if is_batch(name) else GatewayTask
        try:
            obj = await self.context.kube.get(kind.plural, name)
        except ObjectNotFound:
            obj = None
        if obj is not None and obj["spec"]["request"]["accountName"] == account:
            return obj
        if kind is GatewayBatch:
            return None  # its object is deleted only after its hold is settled
        return await read_archived(self.context.store, account, name)

    async def _list(
        self, field_selector: str, label_selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Metadata of this replica's tasks; the API server leaves out those of other replicas."""
        selectors = (self.context.shards.selector, label_selector)
        async for page in list_pages(
            self.context.kube,
            GatewayTask.plural,
            field_selector=field_selector,
            label_selector=",".join(filter(None, selectors)),
            metadata_only=True,
        ):
            for item in page.items:
                yield item["metadata"]


def _read_end(obj: Object) -> datetime | None:
    ended = obj["status"].get("completionTime")
    return parse_time(ended) if ended else None
