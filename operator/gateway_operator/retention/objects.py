"""Removes ended tasks, batches and Uploads: after a time, or beyond a number, the oldest first.

Metadata alone tells what may be removed: `status.work` is Settled once nothing is left to do, and
the label with the time of aggregation is set only once no charge can be lost. Each object is
deleted at the very version that was listed, so one that is in use again stays. Files stay in any
case: an Upload's File has its segments, a batch's result is its output Files.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.ids import ACCOUNT_LABEL, FOLDED_LABEL
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.times import parse_label_time, parse_time
from gateway_core.api.upload import LIFETIME_SECONDS, GatewayUpload
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import VersionExpired, WriteConflict, WriteOutcomeUnknown
from gateway_core.kube.lists import list_pages
from gateway_operator.context import Failpoints
from gateway_operator.metrics import Metrics

_log = structlog.get_logger(__name__)


DAY_SECONDS = 86_400.0
RESULT_DAYS = 30
"""How long the result of a task can be read (contract §2.3), and an ended batch."""
MOST_ENDED = 1000


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Times in seconds.

    `finished` is how long a finished task's object is kept after it was archived, `most` how many
    are kept in total; `least` how long each is kept in any case, so that a create that was looking
    for it finds either it or its archive (contract §2.2). `ended` is how many ended Uploads, and as
    many ended batches, are kept of one account (§12.1a). An Upload is kept for a day after its
    lifetime, to answer repeats of its requests (§4.4).
    """

    finished: float = 3600.0
    most: int = 20_000
    least: float = 600.0
    ended: int = MOST_ENDED
    batches: float = RESULT_DAYS * DAY_SECONDS
    results: float = (RESULT_DAYS + 1) * DAY_SECONDS
    uploads: float = LIFETIME_SECONDS + DAY_SECONDS
    usage_days: int = 8


AT_ONCE = 8
PER_SECOND = 200.0
"""Deletes a second of one sweep, at most: work on live objects goes first."""


@dataclass(frozen=True, order=True, slots=True)
class Listed:
    """An object that has ended, as a list of metadata shows it; the oldest sorts first."""

    since: datetime
    name: str
    uid: str
    version: str
    account: str = field(compare=False)

    @classmethod
    def read(cls, meta: Mapping[str, Any], since: datetime) -> Self:
        """From an object's metadata; `account` is empty where no label says it."""
        account = (meta.get("labels") or {}).get(ACCOUNT_LABEL, "")
        return cls(since, meta["name"], meta["uid"], meta["resourceVersion"], account)


@dataclass(eq=False)
class Deletions:
    """Deletes objects at the version that was listed: one that has changed since stays."""

    kube: KubernetesClient
    failpoints: Failpoints

    async def delete(self, plural: str, objects: Sequence[Listed]) -> int:
        """Delete objects; how many this call has deleted. RecordUnavailable."""
        loop = asyncio.get_running_loop()
        deleted = 0
        for start in range(0, len(objects), AT_ONCE):
            begun = loop.time()
            some = objects[start : start + AT_ONCE]
            deleted += sum(await asyncio.gather(*(self._delete(plural, each) for each in some)))
            await asyncio.sleep(max(0.0, begun + len(some) / PER_SECOND - loop.time()))
        return deleted

    async def _delete(self, plural: str, listed: Listed) -> bool:
        self.failpoints.reach("before-removal")
        try:
            await self.kube.delete(plural, listed.name, uid=listed.uid, version=listed.version)
        except (WriteConflict, WriteOutcomeUnknown):
            return False
        self.failpoints.reach("after-removal")
        return True


@dataclass(frozen=True, slots=True)
class EndedKind:
    """A kind whose settled objects are removed. `read_time` reads from when metadata count.

    None from `read_time`: the object stays.
    """

    plural: str
    read_time: Callable[[Mapping[str, Any]], datetime | None]
    label_selector: str = ""


UPLOADS = EndedKind(GatewayUpload.plural, lambda meta: parse_time(meta["creationTimestamp"]))
BATCHES = EndedKind(
    GatewayBatch.plural,
    lambda meta: parse_label_time(meta["labels"][FOLDED_LABEL]),
    FOLDED_LABEL,
)


class EndedRemoval:
    """Sweeps over the settled objects of a kind. Safe to run concurrently and to be cancelled.

    Objects older than `kept_seconds` are removed; of an account's others the newest `most` stay.
    Memory: a page of metadata, a count for each account, and `most` entries of one account.
    `resume` is called with the name of an object that a kill left with its finalizer.
    """

    def __init__(
        self,
        kube: KubernetesClient,
        deletions: Deletions,
        kind: EndedKind,
        now: Callable[[], datetime],
        *,
        kept_seconds: float,
        most: int,
        resume: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._kube = kube
        self._deletions = deletions
        self._kind = kind
        self._now = now
        self._kept_seconds = kept_seconds
        self._most = most
        self._resume = resume

    async def sweep(self) -> int:
        """Remove what is due; how many. After an error the next sweep continues."""
        removed = 0
        kept = Counter[str]()
        async for page in self._list(self._kind.label_selector):
            due = [each for each in page if self._is_over(each)]
            kept.update(each.account for each in page if not self._is_over(each))
            removed += await self._deletions.delete(self._kind.plural, due)
        for account, count in kept.items():
            if account and count > self._most:
                removed += await self._trim(account)
        if removed:
            _log.info("ended objects removed", kind=self._kind.plural, objects=removed)
        return removed

    async def _trim(self, account: str) -> int:
        """Remove the account's oldest beyond `most`."""
        parts = (self._kind.label_selector, f"{ACCOUNT_LABEL}={account}")
        removed = 0
        newest: list[Listed] = []
        async for page in self._list(",".join(filter(None, parts))):
            due: list[Listed] = []
            for each in page:
                if len(newest) < self._most:
                    heapq.heappush(newest, each)
                else:
                    due.append(heapq.heappushpop(newest, each))
            removed += await self._deletions.delete(self._kind.plural, due)
        return removed

    def _is_over(self, listed: Listed) -> bool:
        return (self._now() - listed.since).total_seconds() >= self._kept_seconds

    async def _list(self, label_selector: str) -> AsyncIterator[list[Listed]]:
        """Pages of objects that may be removed."""
        async for page in list_pages(
            self._kube,
            self._kind.plural,
            label_selector=label_selector,
            field_selector=f"status.work={SETTLED}",
            metadata_only=True,
        ):
            found: list[Listed] = []
            for meta in (item["metadata"] for item in page.items):
                since = self._kind.read_time(meta)
                if meta.get("finalizers"):
                    self._resume(meta["name"])
                elif since is not None:
                    found.append(Listed.read(meta, since))
            yield found


PAGE = 500
MOST_CANDIDATES = 20_000
"""Tasks beyond the number kept that one pass removes; the next pass continues."""


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
