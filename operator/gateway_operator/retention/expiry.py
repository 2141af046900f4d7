"""Removes bytes whose time is over: archives, outputs and inputs of tasks that ended long ago.

By the age of each object alone, since none is needed later than 30 days after it was last written:
so what belongs to no task any more (an input that lost a race, an output of a copy that was cut
short) goes with the rest. What the runs cost is in the usage, not here.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from gateway_core.ports.objects import ObjectStore
from gateway_operator.retention.rules import Rules

PREFIXES = ("inputs/", "media/", "tasks/")
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
