"""The usage aggregator: adds the charges of ended runs to usage objects, many in one write.

The first run of an account's day is written at once, those within a pause after it together: a lone
task is closed without delay, and a busy account costs one write in that time. The pause grows with
the time that a write takes, which is long for an account with a thousand keys in use.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

from gateway_core.api.resource import Object
from gateway_core.billing.charges import has_charge, read_charge
from gateway_core.billing.usage_store import (
    MOST_RUNS,
    AggregationDeferred,
    aggregate_runs,
    is_aggregated,
)
from gateway_core.failures import describe_failure
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import Terminating
from gateway_operator.metrics import Metrics

_MOST_PAUSE = 10.0
_MOST_BATCHES = 1000
"""Accounts and days kept in memory between two of their writes."""


class UsageAggregator:
    """Group commit: one of the waiting calls writes for all."""

    def __init__(
        self,
        kube: KubernetesClient,
        metrics: Metrics,
        now: Callable[[], datetime],
        *,
        pause_seconds: float,
        most: int = MOST_RUNS,
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._now = now
        self._pause = pause_seconds
        self._most = min(most, MOST_RUNS)
        self._batches: dict[tuple[str, str], _Batch] = {}

    @property
    def waiting(self) -> int:
        """Runs that wait for a write."""
        return sum(len(batch.waiting) for batch in self._batches.values())

    async def aggregate(self, task: Object) -> None:
        """Return once the ended run's charge is in its account's usage.

        Raises AggregationDeferred, and Terminating where no usage object can be created any more.
        A batch that has not run a line has no charge.
        """
        if is_aggregated(task) or not has_charge(task):
            return
        charge = read_charge(task)
        batch = self._find_batch(charge.account, charge.day)
        waiting = batch.waiting
        waiting[charge.uid] = task
        batch.users += 1
        if len(waiting) >= self._most:
            batch.full.set()
        try:
            while charge.uid in waiting:
                # the first call to get the lock writes for all; the others find theirs written
                async with batch.turn:
                    if charge.uid in waiting:
                        await self._write(charge.account, charge.day, batch)
            if charge.uid in batch.failures:
                is_final, text = batch.failures.pop(charge.uid)
                raise Terminating(text) if is_final else AggregationDeferred(text)
        finally:
            waiting.pop(charge.uid, None)
            batch.failures.pop(charge.uid, None)
            batch.users -= 1

    def acknowledge(self, task: Object) -> None:
        """Note that the run is marked: its name may be dropped with the next write."""
        if not has_charge(task):
            return
        charge = read_charge(task)
        batch = self._batches.get((charge.account, charge.day))
        if batch is not None:
            batch.marked.add(charge.uid)

    async def _write(self, account: str, day: str, batch: "_Batch") -> None:
        """Write for one group of waiting runs; all of them fail with it."""
        loop = asyncio.get_running_loop()
        if not batch.full.is_set():
            try:
                # measured from the last write, so that a lone run does not wait
                pause = max(self._pause, min(_MOST_PAUSE, 4 * batch.took))
                async with asyncio.timeout(batch.written + pause - loop.time()):
                    await batch.full.wait()
            except TimeoutError:
                pass
        chosen = dict(list(batch.waiting.items())[: self._most])
        marked = set(batch.marked)
        begun = loop.time()
        try:
            done = await aggregate_runs(
                self._kube,
                account,
                day,
                list(chosen.values()),
                marked,
                self._now(),
                self._metrics.aggregated.inc,
            )
        except Exception as error:  # raised to all that waited for this write
            done = set(chosen)
            text = f"not aggregated: {describe_failure(error)}"
            failure = isinstance(error, Terminating), text
            batch.failures.update(dict.fromkeys(chosen, failure))
        else:
            batch.marked -= marked
        batch.written = loop.time()
        batch.took = batch.written - begun
        for uid in done:
            batch.waiting.pop(uid, None)
        if len(batch.waiting) < self._most:
            batch.full.clear()

    def _find_batch(self, account: str, day: str) -> "_Batch":
        key = account, day
        if key not in self._batches and len(self._batches) >= _MOST_BATCHES:
            # the acknowledgements lost here are found again should their room be needed
            self._batches = {k: batch for k, batch in self._batches.items() if batch.users}
        return self._batches.setdefault(key, _Batch())


class _Batch:
    """Runs that wait for one account's day, and the lock of the write."""

    def __init__(self) -> None:
        self.waiting: dict[str, Object] = {}
        self.failures: dict[str, tuple[bool, str]] = {}
        self.marked: set[str] = set()
        self.turn = asyncio.Lock()
        self.full = asyncio.Event()
        self.written = float("-inf")
        self.took = 0.0
        self.users = 0
