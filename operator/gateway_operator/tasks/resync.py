"""Repairs: what events did not tell, tasks that ended but were not closed, holds without a task.

Each sweep compares the record with what is in memory. Safe to run twice and on several replicas.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import CALL_PREFIX, is_batch
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.charges import ENDED_PHASES
from gateway_core.billing.counters import Hold
from gateway_core.billing.ledger import read_entry
from gateway_core.billing.usage_store import select_unaggregated
from gateway_core.concurrency import Supervisor
from gateway_core.kube.errors import KubernetesError, ObjectNotFound
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable
from gateway_core.tasks.archive import read_archived
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.tasks.tools import Tools

REVIEW_SECONDS = 600.0
HOLD_SECONDS = 120.0
"""How long a hold may be without an object: longer than a create can be under way."""

LATE_SECONDS = 60.0
"""A hold that was taken so long after its task's end is a late owner's: the charge is counted.

A rebuild, too, takes holds of tasks that have ended since it began, which is 30 s ago at most.
"""

_log = structlog.get_logger(__name__)


class Resync:
    """Sweeps every so often, the first time right at the start."""

    def __init__(
        self, tools: Tools, sweep_seconds: float, supervisor: Supervisor | None = None
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._tools = tools
        self._pause = sweep_seconds
        self._suspects: dict[str, int] = {}
        self.missed = 0
        for name in ("open_tasks", "holds", "ended_tasks"):
            tools.metrics.note_sweep(name, tools.now())

    async def run(self) -> None:
        """Sweeps until cancelled, whatever fails."""
        next_review = float("-inf")
        while True:
            await self._try(self.sweep_open_tasks)
            await self._try(self.sweep_holds)
            # ended tasks grow with what is kept, so they are looked through less often
            if time.monotonic() >= next_review and await self._try(self.sweep_ended_tasks):
                next_review = time.monotonic() + max(REVIEW_SECONDS, self._pause)
            await asyncio.sleep(self._pause)

    async def _try(self, sweep: Callable[[], Awaitable[int]]) -> bool:
        """Whether the sweep came to its end."""
        name = sweep.__name__.removeprefix("sweep_")
        away = (KubernetesError, CountersUnavailable, StoreUnavailable)
        with self._supervisor.guard(name, *away) as attempt:
            await sweep()
            self._tools.metrics.note_sweep(name, self._tools.now())
        return not attempt.failed

    async def sweep_open_tasks(self) -> int:
        """Finds open tasks whose newest version the watch has not shown; how many it mended.

        A version is missed only if two sweeps in a row know of it and memory does not: events are
        under way all the time. Tasks in memory that the record has no more are dropped.
        """
        tools, behind, seen = self._tools, dict[str, int](), set[str]()
        known_before = set(tools.live.names())
        async for meta in self._list(OPEN_SELECTOR):
            name, version = meta["name"], int(meta["resourceVersion"])
            seen.add(name)
            if tools.live.version(name) < version:
                behind[name] = version
        missed = [name for name, version in behind.items() if self._suspects.get(name) == version]
        vanished = [name for name in known_before - seen if tools.live.get(name) is not None]
        self._suspects = behind
        for name in (*missed, *vanished):
            await tools.journal.refresh(name)
            tools.queue.add(name)
        if missed:
            self.missed += len(missed)
            tools.metrics.repairs.inc(len(missed))
            _log.warning("the watch has missed changes", objects=len(missed), first=missed[0])
        return len(missed)

    async def sweep_ended_tasks(self) -> int:
        """Takes up tasks that have ended and were not closed; how many there were."""
        tools, found = self._tools, 0
        async for meta in self._list("status.work=Settled", select_unaggregated()):
            name = meta["name"]
            if tools.live.get(name):
                continue
            await tools.journal.refresh(name)
            tools.queue.add(name)
            found += 1
        return found

    async def sweep_holds(self) -> int:
        """Ends holds whose run has ended, or was never recorded; how many there were.

        Each replica sees to the tasks of its shards, which it mostly has in memory. A call's
        process keeps its hold young, so that of an old one is gone, or cannot reach the counters:
        whatever it has told of the call is in the journal, from which all is rebuilt without it.
        """
        ended, running, unaccounted = 0, 0.0, 0.0
        for account in await self._tools.counters.list_accounts():
            try:
                holds = await self._tools.counters.list_holds(account, HOLD_SECONDS)
                holds = [hold for hold in holds if self._tools.shards.owns_name(hold.task)]
                calls = sum(hold.task.startswith(CALL_PREFIX) for hold in holds)
                for hold in holds:
                    if hold.task.startswith(CALL_PREFIX):
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
                    await self._tools.counters.mark_stale(account)
                    ended += calls
            except CountersStale:
                continue
        self._tools.metrics.show_oldest_holds(running, unaccounted)
        if ended:
            self._tools.metrics.stray_holds.inc(ended)
            _log.info("stray holds ended", holds=ended)
        return ended

    def _is_running(self, name: str) -> bool:
        """Whether the task is known to be under way here, which saves asking for it."""
        obj = self._tools.live.get(name)
        return obj is not None and (obj.get("status") or {}).get("phase") not in ENDED_PHASES

    async def _end_hold(self, account: str, hold: Hold) -> bool:
        obj = await self._find(account, hold.task)
        if obj is not None and (obj.get("status") or {}).get("phase") not in ENDED_PHASES:
            return False
        now = self._tools.now()
        charged, ended = (read_entry(obj).charged, _read_end(obj)) if obj else (0, None)
        at = ended or now
        if hold.age < (now - at).total_seconds() - LATE_SECONDS:
            charged = 0
        return await self._tools.counters.settle(account, hold.task, charged, at)

    async def _find(self, account: str, name: str) -> Object | None:
        kind = GatewayBatch if is_batch(name) else GatewayTask
        try:
            obj = await self._tools.kube.get(kind.plural, name)
        except ObjectNotFound:
            obj = None
        if obj is not None and obj["spec"]["request"]["accountName"] == account:
            return obj
        if kind is GatewayBatch:
            return None  # it goes only after its hold
        return await read_archived(self._tools.store, account, name)

    async def _list(
        self, field_selector: str, label_selector: str = ""
    ) -> AsyncIterator[dict[str, Any]]:
        """Metadata of this replica's tasks; the API server leaves out those of the others."""
        token = None
        selectors = (self._tools.shards.selector, label_selector)
        while True:
            page = await self._tools.kube.list_page(
                GatewayTask.plural,
                token=token,
                field_selector=field_selector,
                label_selector=",".join(filter(None, selectors)),
                metadata_only=True,
            )
            for item in page.items:
                yield item["metadata"]
            token = page.next_token
            if token is None:
                return


def _read_end(obj: Object) -> datetime | None:
    ended = obj["status"].get("completionTime")
    return parse_time(ended) if ended else None
