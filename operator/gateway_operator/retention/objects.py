"""Removes ended tasks, batches and Uploads: after a time, or beyond a number, the oldest first.

Metadata alone tells what may be removed: `status.work` is Settled once nothing is left to do, and
the label with the time of aggregation is set only once no charge can be lost. Each object is
deleted at the very version that was listed, so one that is in use again stays. Files stay in any
case: an Upload's File has its segments, a batch's result is its output Files.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
    """Deletes objects at the version that was listed: one that has changed since stays.

    Without `exact` only another object of the name stays.
    """

    kube: KubernetesClient
    failpoints: Failpoints
    exact: bool = True

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
            version = listed.version if self.exact else ""
            await self.kube.delete(plural, listed.name, uid=listed.uid, version=version)
        except (WriteConflict, WriteOutcomeUnknown):
            return False
        self.failpoints.reach("after-removal")
        return True


@dataclass(frozen=True, slots=True)
class EndedKind:
    """A kind whose settled objects are removed.

    `read_time` reads from its metadata since when an object counts as ended; None: it stays. The
    number that is kept is that of an account, or of all accounts together.
    """

    plural: str
    read_time: Callable[[Mapping[str, Any]], datetime | None]
    label_selector: str = ""
    by_account: bool = True


def _read_aggregation(meta: Mapping[str, Any]) -> datetime | None:
    return parse_label_time(meta["labels"][FOLDED_LABEL])


UPLOADS = EndedKind(GatewayUpload.plural, lambda meta: parse_time(meta["creationTimestamp"]))
BATCHES = EndedKind(GatewayBatch.plural, _read_aggregation, FOLDED_LABEL)
TASKS = EndedKind(GatewayTask.plural, _read_aggregation, FOLDED_LABEL, by_account=False)


@dataclass(eq=False)
class EndedRemoval:
    """Sweeps over the settled objects of a kind. Safe to run concurrently and to be cancelled.

    Objects older than `kept_seconds` are removed; of the others the newest `most` stay, and all
    that are younger than `least_seconds`. Memory: a page of metadata, a count for each account, and
    `most` entries. `resume` is called with the name of an object that still has a finalizer;
    `note_kept` and `note_removed` with numbers of objects.
    """

    kube: KubernetesClient
    deletions: Deletions
    kind: EndedKind
    now: Callable[[], datetime]
    kept_seconds: float
    most: int
    least_seconds: float = 0.0
    resume: Callable[[str], None] = lambda _name: None
    note_kept: Callable[[int], None] = lambda _count: None
    note_removed: Callable[[int], None] = lambda _count: None

    async def sweep(self) -> int:
        """Remove what is due; how many. After another error the next sweep continues."""
        removed = 0
        while True:
            before = removed
            try:
                kept = Counter[str | None]()
                async for page in self._list():
                    due = [each for each in page if self._is_over(each)]
                    kept.update(self._select_group(e) for e in page if not self._is_over(e))
                    removed += await self._remove(due)
                trimmed = 0
                for selector, count in kept.items():
                    if selector is not None and count > self.most:
                        trimmed += await self._trim(selector)
            except VersionExpired:
                # removals took so long that the list expired; without one it would expire again
                if removed == before:
                    raise
                continue
            self.note_kept(kept.total() - trimmed)
            removed += trimmed
            if removed:
                _log.info("ended objects removed", kind=self.kind.plural, objects=removed)
            return removed

    async def _trim(self, selector: str) -> int:
        """Remove the oldest of a group beyond `most`.

        They are chosen from a list of their own: with those of the list before, another owner that
        sweeps at the same time would make this one remove too many.
        """
        removed = 0
        newest: list[Listed] = []
        async for page in self._list(selector):
            due: list[Listed] = []
            for each in page:
                if len(newest) < self.most:
                    heapq.heappush(newest, each)
                    continue
                oldest = heapq.heappushpop(newest, each)
                if self._age(oldest) >= self.least_seconds:
                    due.append(oldest)
            removed += await self._remove(due)
        return removed

    async def _remove(self, due: list[Listed]) -> int:
        removed = await self.deletions.delete(self.kind.plural, due)
        self.note_removed(removed)
        return removed

    def _is_over(self, listed: Listed) -> bool:
        return self._age(listed) >= max(self.kept_seconds, self.least_seconds)

    def _age(self, listed: Listed) -> float:
        return (self.now() - listed.since).total_seconds()

    def _select_group(self, listed: Listed) -> str | None:
        """Return the label selector of the objects that `most` counts.

        Return None where it counts none.
        """
        if not self.kind.by_account:
            return ""
        return f"{ACCOUNT_LABEL}={listed.account}" if listed.account else None

    async def _list(self, selector: str = "") -> AsyncIterator[list[Listed]]:
        """Pages of objects that may be removed."""
        async for page in list_pages(
            self.kube,
            self.kind.plural,
            label_selector=",".join(filter(None, (self.kind.label_selector, selector))),
            field_selector=f"status.work={SETTLED}",
            metadata_only=True,
        ):
            found: list[Listed] = []
            for meta in (item["metadata"] for item in page.items):
                since = self.kind.read_time(meta)
                if meta.get("finalizers"):
                    # an Upload whose settling was cut short, or a task whose callback is sent again
                    self.resume(meta["name"])
                elif since is not None:
                    found.append(Listed.read(meta, since))
            yield found
