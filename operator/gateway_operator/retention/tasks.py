"""Removes finished tasks: after a time, or beyond a number, the oldest first.

Metadata alone tells what may be removed: the label with the time of the fold is set only once
nothing of the task can be lost, and `status.work` is Settled once its callback is. Each task is
deleted at the very version that was listed, so one that is in use again stays.
"""

import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime

import structlog

from gateway_core.api.ids import FOLDED_LABEL
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_label_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import VersionExpired
from gateway_core.kube.lists import list_pages
from gateway_operator.metrics import Metrics
from gateway_operator.retention.deletions import Deletions, Listed, RetentionRules

PAGE = 500
MOST_CANDIDATES = 20_000
"""Tasks beyond the number kept that one pass removes; the next pass continues."""

_log = structlog.get_logger(__name__)


class TaskRemoval:
    """Sweeps over all finished tasks. Safe to run twice at a time and to be cut short."""

    def __init__(
        self,
        kube: KubernetesClient,
        rules: RetentionRules,
        metrics: Metrics,
        deletions: Deletions,
        now: Callable[[], datetime],
        *,
        most_candidates: int = MOST_CANDIDATES,
    ) -> None:
        self._kube = kube
        self._rules = rules
        self._metrics = metrics
        self._deletions = deletions
        self._now = now
        self._most_candidates = most_candidates

    async def sweep(self) -> int:
        """Remove what is due; how many. Repeats while more is due and some was removed."""
        total, more = 0, True
        while more:
            removed, more = await self._pass()
            total += removed
            more = more and removed > 0
        return total

    async def _pass(self) -> tuple[int, bool]:
        """One list and its removals: how many were removed, and whether more are due.

        Memory is that of a page and of `MOST_CANDIDATES`.
        """
        kept, removed = 0, 0
        oldest: list[tuple[float, Listed]] = []
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
        except VersionExpired:
            # the list has expired while its tasks were removed; the next one continues
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

    def _divide(self, page: Iterable[Listed]) -> tuple[list[Listed], list[tuple[Listed, bool]]]:
        """Tasks whose time is over; and the others, with whether they may go for lack of room."""
        now, rules = self._now(), self._rules
        due: list[Listed] = []
        rest: list[tuple[Listed, bool]] = []
        for task in page:
            age = (now - task.since).total_seconds()
            if age >= max(rules.finished, rules.least):
                due.append(task)
            else:
                rest.append((task, age >= rules.least))
        return due, rest

    async def _remove(self, tasks: list[Listed]) -> int:
        removed = await self._deletions.delete(GatewayTask.plural, tasks)
        self._metrics.removed.inc(removed)
        return removed

    async def _list(self) -> AsyncIterator[list[Listed]]:
        """Pages of tasks that were archived and folded, and have no work left."""
        async for page in list_pages(
            self._kube,
            GatewayTask.plural,
            limit=PAGE,
            label_selector=FOLDED_LABEL,
            field_selector="status.work=Settled",
            metadata_only=True,
        ):
            found = []
            for meta in (item["metadata"] for item in page.items):
                since = parse_label_time(meta["labels"][FOLDED_LABEL])
                # a finalizer: its callback is about to be sent once more
                if since is not None and not meta.get("finalizers"):
                    found.append(Listed.read(meta, since))
            yield found
