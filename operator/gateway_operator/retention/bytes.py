"""Removes bytes whose time is over: of tasks that ended, and of removed keys and guardrails.

By the age of each object alone, since none is needed later than 30 days after it was last written:
so what belongs to no task any more (an input that lost a race, an output of a copy that was cut
short) goes with the rest. What the runs cost is in the usage, not here.
"""

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.archive import REMOVED_PREFIXES
from gateway_operator.retention.deletions import MOST_ENDED, Rules

PREFIXES = ("inputs/", "media/", "tasks/", *REMOVED_PREFIXES.values())
BATCH = 500

_log = structlog.get_logger(__name__)


class Expiry:
    """Sweeps over the object store, page by page."""

    def __init__(self, store: ObjectStore, rules: Rules, now: Callable[[], datetime]) -> None:
        self._store = store
        self._rules = rules
        self._now = now

    async def sweep(self) -> int:
        """Removes what is due; how many objects. StoreUnavailable: the next sweep begins anew."""
        oldest = self._now() - timedelta(seconds=self._rules.results)
        removed = 0
        for prefix in PREFIXES:
            due: list[str] = []
            async for entry in self._store.list_entries(prefix):
                if entry.modified < oldest:
                    due.append(entry.key)
                if len(due) >= BATCH:
                    await self._store.delete_many(due)
                    removed += len(due)
                    due = []
            await self._store.delete_many(due)
            removed += len(due)
        if removed:
            _log.info("bytes of the past removed", objects=removed)
        return removed


class RemovedTrim:
    """Bounds what is left of removed keys and guardrails: of each kind, `most` of an account.

    Memory: `most` entries of one account, since a store lists keys in their order.
    """

    def __init__(self, store: ObjectStore, *, most: int = MOST_ENDED) -> None:
        self._store = store
        self._most = most

    async def sweep(self) -> int:
        """Removes the oldest beyond `most`; how many. StoreUnavailable."""
        removed = 0
        for prefix in REMOVED_PREFIXES.values():
            folder, newest, due = "", list[tuple[datetime, str]](), list[str]()
            async for entry in self._store.list_entries(prefix):
                if (own := entry.key.rpartition("/")[0]) != folder:
                    folder, newest = own, []
                if len(newest) < self._most:
                    heapq.heappush(newest, (entry.modified, entry.key))
                else:
                    due.append(heapq.heappushpop(newest, (entry.modified, entry.key))[1])
                if len(due) >= BATCH:
                    await self._store.delete_many(due)
                    removed, due = removed + len(due), []
            await self._store.delete_many(due)
            removed += len(due)
        return removed
