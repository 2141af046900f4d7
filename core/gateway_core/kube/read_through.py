"""Reading through a table that may be behind: by name, once a second at most, waiting together.

Used for keys, accounts, users and guardrails while their watch is silent, and for tasks by the
rules of `core/tasks/finder.py`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from gateway_core.concurrency import WaitLimit
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import KubernetesError, KubernetesUnavailable, ObjectNotFound
from gateway_core.kube.informer import Cache

T = TypeVar("T")

QUIET_SECONDS = 5.0
"""Silence of a watch after which its table no longer counts as current."""
INTERVAL_SECONDS = 1.0
READ_SECONDS = 1.0
FAILURE_PAUSE_SECONDS = 3.0
"""Time after a failed read in which no other is tried: an API that hangs holds up few."""
_FIRST_SWEEP = 1024
_MOST_READS = 3


class SharedReads(Generic[T]):
    """Reads by name, each shared by all who ask for the name within a second.

    `read` raises KubernetesError where it fails; it is given up after a second.
    """

    def __init__(
        self,
        read: Callable[[str], Coroutine[Any, Any, T]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._reads: dict[str, tuple[float, asyncio.Task[T | None]]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._failed_at = float("-inf")

    def find(
        self, name: str, *, newer_than: asyncio.Task[T | None] | None = None
    ) -> asyncio.Task[T | None] | None:
        """Return the current read, or a new one; None within three seconds after a failure.

        A failed read results in None: an exception that many callers share would gather all their
        tracebacks. Callers shield it, so that one that is cancelled does not cancel the others'.
        """
        now = self._clock()
        began, task = self._reads.get(name, (float("-inf"), None))
        is_current = now - began < INTERVAL_SECONDS if newer_than is None else task != newer_than
        if task is not None and is_current:
            return task
        if now - self._failed_at < FAILURE_PAUSE_SECONDS:
            return None
        self._sweep(now)
        task = asyncio.create_task(self._try(name))
        self._reads[name] = (now, task)
        return task

    async def _try(self, name: str) -> T | None:
        try:
            async with WaitLimit(READ_SECONDS):
                return await self._read(name)
        except (KubernetesError, TimeoutError):
            self._failed_at = self._clock()
            return None

    def _sweep(self, now: float) -> None:
        if len(self._reads) < self._sweep_at:
            return
        self._reads = {
            name: entry
            for name, entry in self._reads.items()
            if now - entry[0] < INTERVAL_SECONDS or not entry[1].done()
        }
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._reads))


class ReadThrough(Generic[T]):
    """Named reads into one `table`."""

    def __init__(
        self,
        table: Cache[T],
        kube: KubernetesClient,
        plural: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = table
        self._kube = kube
        self._plural = plural
        self._reads = SharedReads(self._read, clock=clock)

    @property
    def is_quiet(self) -> bool:
        """Whether the table may be behind by more than a watch's usual delay."""
        return self.table.staleness > QUIET_SECONDS

    async def read(self, name: str, is_recent: Callable[[T], bool] = lambda _: True) -> T | None:
        """Return the entry as the record has it, or had it within the last second; None if gone.

        `is_recent` tells an entry from one that the caller knows to be outdated. Such an entry is
        read once more, and returned if it still is: the record itself may be, after a restore.

        Raises KubernetesUnavailable: no answer within 1 s, or another read has just failed.
        """
        task = self._reads.find(name)
        for attempt in range(_MOST_READS):
            exists = None if task is None else await asyncio.shield(task)
            if exists is None:
                raise KubernetesUnavailable(f"{self._plural} cannot be read")
            entry = self.table.get(name) if exists else None
            if not exists or (entry is not None and (attempt or is_recent(entry))):
                return entry
            # the read is older than the watch's removal of the entry, or than what the caller knows
            task = self._reads.find(name, newer_than=task)
        raise KubernetesUnavailable(f"{self._plural} change faster than they are read")

    async def _read(self, name: str) -> bool:
        """Return whether the object exists."""
        try:
            obj = await self._kube.get(self._plural, name)
        except ObjectNotFound:
            return False
        # a projection may leave out an object whose deletion has begun; any other that the table
        # does not have has changed since the read
        kept = self.table.upsert(obj) is not None
        return kept or "deletionTimestamp" not in obj["metadata"]
