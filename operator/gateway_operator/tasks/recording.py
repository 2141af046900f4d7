"""The records of an ended task: its charge in its account's usage, and the archive.

A task with a callback gets both beside its delivery, which may take a day: neither waits for the
other. Whether that is done is read from the usage and the archive themselves, so that it takes no
write of the task.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

from gateway_core.api.ids import CHARGED, FOLDED_LABEL
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.billing.charges import describe_charge
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.usage_store import is_aggregated
from gateway_core.tasks.archive import is_same_end, read_archived
from gateway_core.tasks.history import record_task
from gateway_core.tasks.lifecycle import is_terminal
from gateway_core.tasks.restoring import is_made_after
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.context import Context
from gateway_operator.reconciler import WorkQueue
from gateway_operator.tasks.cache import TaskCache


class Recording:
    """Records ended tasks. Its memory only spares repetitions."""

    def __init__(
        self,
        context: Context,
        cache: TaskCache,
        aggregator: UsageAggregator,
        counters: Counters,
        note_failure: Callable[[], None],
    ) -> None:
        self._context = context
        self._cache = cache
        self._aggregator = aggregator
        self._counters = counters
        self.queue = WorkQueue(self._record_open, note_failure)
        self._charged: dict[str, str] = {}
        self._archived: dict[str, str] = {}
        # the aggregator takes a run once at a time, and the last state has to be archived last
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s records."""
        self.queue.forget(name)
        self._charged.pop(name, None)
        self._archived.pop(name, None)

    def begin(self, task: GatewayTask) -> None:
        """Record an ended task whose callback is tried, unless that is done; returns at once."""
        name = task.metadata.name
        if self._archived.get(name) != task.metadata.uid:
            self.queue.add(name)

    async def record(self, task: GatewayTask) -> None:
        """Record a task in its last state. Can be repeated.

        In this order, so that what is archived is in the usage.
        """
        async with self._lock(task.metadata.name):
            await self._charge(task)
            await self._archive(task)

    def note_label(self, task: GatewayTask) -> None:
        """Note that a task is labelled: the usage need not name it any more."""
        self._aggregator.acknowledge(task.source)

    async def end(self) -> None:
        """Cancel the work in progress, which can be repeated, and start nothing more."""
        await self.queue.drain(0.0)
        await self.queue.stop(lambda _: False)

    async def _record_open(self, name: str) -> None:
        async with self._lock(name):
            task = self._find(name)
            if task is None:
                return
            await self._charge(task)
            # it was closed, or is about to be, which archives it: mostly its callback takes less
            # time than the aggregation
            task = self._find(name)
            if task is not None:
                await self._archive(task)
                self._archived[name] = task.metadata.uid

    def _find(self, name: str) -> GatewayTask | None:
        """Return the task if it has ended and its callback is still tried."""
        task = self._cache.get(name)
        if task is None or not is_terminal(task) or task.status.work == SETTLED:
            return None
        return task

    async def _charge(self, task: GatewayTask) -> None:
        name, uid = task.metadata.name, task.metadata.uid
        if self._charged.get(name) == uid:
            return
        with self._giving_up(task, describe_charge(task.source)):
            if not await self._was_charged(task):
                await self._aggregator.aggregate(task.source)
        self._context.failpoints.reach("after-fold")
        self._charged[name] = uid

    async def _was_charged(self, task: GatewayTask) -> bool:
        """Return whether the task was restored, with its status, after its charge was in the usage.

        The usage named it by another uid. It gets the label, so that no rebuild counts it.
        """
        source, account = task.source, task.spec.request.account_name
        ended = task.status.completion_time
        if is_aggregated(source) or ended is None or not is_made_after(source, ended):
            return False
        archived = await read_archived(self._context.store, account, task.metadata.name)
        if archived is None or archived["metadata"]["uid"] == task.metadata.uid:
            return False
        if not is_same_end(archived, source):
            return False
        label = {"metadata": {"labels": {FOLDED_LABEL: CHARGED}}}
        await self._context.kube.patch(GatewayTask.plural, source, label)
        # a rebuild may have counted it before
        await self._counters.mark_stale(account)
        return True

    async def _archive(self, task: GatewayTask) -> None:
        with self._giving_up(task, "its archive"):
            await record_task(self._context.store, task.source)
        self._context.failpoints.reach("after-archive")

    def _giving_up(self, task: GatewayTask, what: str) -> AbstractContextManager[None]:
        termination = self._context.termination
        return termination.giving_up(GatewayTask.plural, task.source, what)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())
