"""Removes finished tasks: after a time, or beyond a number the oldest first.

What may go is known from metadata alone: the label that says when a task was archived and folded
is there only once nothing of it can be lost, and `status.work` is Settled once its callback is.
Each is deleted at the very version that was listed, so one that is in use again stays.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import structlog

from gateway_core.contract.names import FOLDED_LABEL
from gateway_core.contract.task import GatewayTask
from gateway_core.domain.lifecycle import parse_label_time
from gateway_core.ports.records import (
    Outdated,
    RecordOutcomeUnknown,
    Records,
    WatchExpired,
)
from gateway_operator.failpoints import Failpoints
from gateway_operator.metrics import Metrics
from gateway_operator.retention.rules import Rules

PAGE = 500
AT_ONCE = 8
PER_SECOND = 200.0
"""Deletes a second, at most: the work on live tasks goes first."""
MOST_CANDIDATES = 20_000
"""Tasks beyond the number kept that one look at all of them removes; the next look goes on."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, order=True, slots=True)
class Finished:
    """A finished task as a list of metadata shows it."""

    since: datetime
    name: str
    uid: str
    version: str


class Removal:
    """Sweeps over all finished tasks. Safe to run twice at a time and to be cut short."""

    def __init__(
        self,
        records: Records,
        rules: Rules,
        metrics: Metrics,
        failpoints: Failpoints,
        now: Callable[[], datetime],
        *,
        most_candidates: int = MOST_CANDIDATES,
    ) -> None:
        self._records = records
        self._rules = rules
        self._metrics = metrics
        self._failpoints = failpoints
        self._now = now
        self._most_candidates = most_candidates

    async def sweep(self) -> int:
        """Removes what is due; how many. Goes on while there is more of it and some of it goes."""
        total, more = 0, True
        while more:
            removed, more = await self._look()
            total += removed
            more = more and removed > 0
        return total

    async def _look(self) -> tuple[int, bool]:
        """One list and what follows from it: how many were removed, whether more are due.

        Memory is that of a page and of `MOST_CANDIDATES`.
        """
        kept, removed = 0, 0
        oldest: list[tuple[float, Finished]] = []
        try:
            async for page in self._list():
                due, rest = self._divide(page)
                removed += await self._remove(due)
                kept += len(rest)
                for task, may_go in rest:
                    if may_go:
                        heapq.heappush(oldest, (-task.since.timestamp(), task))
                        if len(oldest) > self._most_candidates:
                            heapq.heappop(oldest)
        except WatchExpired:
            # the list has aged while its tasks were removed; the next one goes on
            _log.info("finished tasks are listed anew", removed=removed)
            return removed, True
        beyond = max(0, kept - self._rules.most)
        more = len(oldest) == self._most_candidates < beyond
        chosen = sorted(task for _, task in oldest)[:beyond]
        removed += await self._remove(chosen)
        self._metrics.finished.set(kept - len(chosen))
        if removed:
            _log.info("finished tasks removed", removed=removed, kept=kept - len(chosen))
        return removed, more

    def _divide(
        self, page: Iterable[Finished]
    ) -> tuple[list[Finished], list[tuple[Finished, bool]]]:
        """Those whose time is over, and the others with whether a lack of room may end theirs."""
        now, rules = self._now(), self._rules
        due: list[Finished] = []
        rest: list[tuple[Finished, bool]] = []
        for task in page:
            age = (now - task.since).total_seconds()
            if age >= max(rules.finished, rules.least):
                due.append(task)
            else:
                rest.append((task, age >= rules.least))
        return due, rest

    async def _remove(self, tasks: list[Finished]) -> int:
        loop = asyncio.get_running_loop()
        removed = 0
        for start in range(0, len(tasks), AT_ONCE):
            begun = loop.time()
            batch = tasks[start : start + AT_ONCE]
            removed += sum(await asyncio.gather(*map(self._delete, batch)))
            await asyncio.sleep(max(0.0, begun + len(batch) / PER_SECOND - loop.time()))
        self._metrics.removed.inc(removed)
        return removed

    async def _delete(self, task: Finished) -> bool:
        self._failpoints.reach("before-removal")
        try:
            await self._records.delete(
                GatewayTask.plural, task.name, uid=task.uid, version=task.version
            )
        except (Outdated, RecordOutcomeUnknown):
            return False
        self._failpoints.reach("after-removal")
        return True

    async def _list(self) -> AsyncIterator[list[Finished]]:
        """Pages of the tasks that were archived and folded, and have nothing left to do."""
        token = None
        while True:
            page = await self._records.list_page(
                GatewayTask.plural,
                limit=PAGE,
                token=token,
                label_selector=FOLDED_LABEL,
                field_selector="status.work=Settled",
                metadata_only=True,
            )
            found = []
            for item in page.items:
                meta = item["metadata"]
                since = parse_label_time(meta["labels"][FOLDED_LABEL])
                # a finalizer: its callback is about to be sent once more
                if since is not None and not meta.get("finalizers"):
                    version = meta["resourceVersion"]
                    found.append(Finished(since, meta["name"], meta["uid"], version))
            yield found
            token = page.next_token
            if token is None:
                return
