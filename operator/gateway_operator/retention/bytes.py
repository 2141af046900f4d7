"""Removes expired bytes: of tasks that have ended, and of removed keys and guardrails.

By the age of each object alone, since none is needed later than 30 days after it was last written.
So bytes that belong to no task (an input that lost a race, an output of a cancelled copy) are
removed with the rest. The cost of runs is kept in the usage, not here.
"""

import heapq
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from gateway_core.storage.objects import ObjectStore
from gateway_core.tasks.archive import REMOVED_PREFIXES
from gateway_operator.files.storage import delete_all
from gateway_operator.retention.deletions import MOST_ENDED, RetentionRules

PREFIXES = ("inputs/", "media/", "tasks/", *REMOVED_PREFIXES.values())

_log = structlog.get_logger(__name__)


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
