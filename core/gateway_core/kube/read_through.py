"""Reading through a table that may be behind: by name, once a second at most, waiting together.

Used for keys, accounts and users while their watch is silent, and for tasks by the rules of
`core/tasks/finder.py`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

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
        self._clock = clock
        self._reads: dict[str, tuple[float, asyncio.Task[bool | None]]] = {}
        self._sweep_at = _FIRST_SWEEP
        self._failed_at = float("-inf")

    @property
    def is_quiet(self) -> bool:
        """Whether the table may be behind by more than a watch's usual delay."""
        return self.table.staleness > QUIET_SECONDS

    async def read(self, name: str) -> T | None:
        """The entry as the record has it, or had it within the last second; None if gone.

        Raises KubernetesUnavailable: no answer within 1 s, or another read has just failed.
        """
        now = self._clock()
        began, task = self._reads.get(name, (float("-inf"), None))
        if task is None or now - began >= INTERVAL_SECONDS:
            task = self._begin(name, now)
        for _ in range(_MOST_READS):
            # shielded: a caller that goes away must not take the answer from the others
            there = await asyncio.shield(task)
            if there is None:
                raise KubernetesUnavailable(f"{self._plural} cannot be read")
            entry = self.table.get(name) if there else None
            if entry is not None or not there:
                return entry
            # the watch has shown since that it ended or went: what was read is behind that
            latest = self._reads.get(name, (now, task))[1]
            task = self._begin(name, self._clock()) if latest is task else latest
        raise KubernetesUnavailable(f"{self._plural} change faster than they are read")

    def _begin(self, name: str, now: float) -> asyncio.Task[bool | None]:
        if now - self._failed_at < FAILURE_PAUSE_SECONDS:
            raise KubernetesUnavailable(f"{self._plural} could not be read a moment ago")
        self._sweep(now)
        task = asyncio.create_task(self._read(name))
        self._reads[name] = (now, task)
        return task

    async def _read(self, name: str) -> bool | None:
        """Whether the object is there; None if that was not told.

        No exception: one that many callers share would gather all their tracebacks.
        """
        try:
            async with WaitLimit(READ_SECONDS):
                obj = await self._kube.get(self._plural, name)
        except ObjectNotFound:
            return False
        except (KubernetesError, TimeoutError):
            self._failed_at = self._clock()
            return None
        self.table.upsert(obj)
        return True

    def _sweep(self, now: float) -> None:
        if len(self._reads) < self._sweep_at:
            return
        self._reads = {
            name: entry
            for name, entry in self._reads.items()
            if now - entry[0] < INTERVAL_SECONDS or not entry[1].done()
        }
        self._sweep_at = max(_FIRST_SWEEP, 2 * len(self._reads))
