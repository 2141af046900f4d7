"""The work queue: names of objects to reconcile, each worked by one task at a time.

The semantics of client-go's work queue: a name that is added while it is being worked is worked
once more afterwards, so the event of an own write is never handled at the same time as the next
step. Concurrency is bounded by the calls that the work makes, not by the number of names.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import count

import structlog

from gateway_core.concurrency import back_off
from gateway_core.files.quota_counters import StorageStale, StorageUnavailable
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable

_log = structlog.get_logger(__name__)

EXPECTED = (
    KubernetesError,
    StoreUnavailable,
    CountersUnavailable,
    CountersStale,
    StorageUnavailable,
    StorageStale,
)
"""Of systems that are away, and races; all other exceptions are logged with their traceback."""


class WorkQueue:
    """Calls `work(name)` for each name that is added, and again with a back-off if it raises."""

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        note_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._note_failure = note_failure
        self._running: dict[str, asyncio.Task[None]] = {}
        self._dirty: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = count()
        self._timer: asyncio.Handle | None = None
        self._timer_due = float("inf")
        self.is_draining = False

    def __len__(self) -> int:
        """Number of names that are being worked."""
        return len(self._running)

    @property
    def scheduled(self) -> int:
        """Number of names that are due later."""
        return len(self._due)

    @property
    def failing(self) -> int:
        """Number of names whose last attempt failed."""
        return len(self._failures)

    def add(self, name: str) -> None:
        """Work `name` now, or once more if it is being worked."""
        self._due.pop(name, None)
        if name in self._running:
            self._dirty.add(name)
        else:
            self._start(name)

    def add_after(self, name: str, seconds: float) -> None:
        """Work `name` after a delay, unless it is added or due sooner."""
        due = asyncio.get_running_loop().time() + max(0.0, seconds)
        if due >= self._due.get(name, float("inf")):
            return
        self._due[name] = due
        heapq.heappush(self._heap, (due, next(self._order), name))
        if due < self._timer_due:
            self._set_timer()

    def forget(self, name: str) -> None:
        """Drop what is scheduled for `name`."""
        self._due.pop(name, None)
        self._failures.pop(name, None)

    async def run(self) -> None:
        """Wait until cancelled; then cancel the work in progress and start nothing more."""
        try:
            await asyncio.Event().wait()
        finally:
            self.is_draining = True
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Start nothing more, and wait at most `seconds` for the work in progress."""
        self.is_draining = True
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=seconds)

    async def stop(self, is_left: Callable[[str], bool]) -> None:
        """Cancel the work in progress, except of names that are left, and wait for its end."""
        stopped = [task for name, task in self._running.items() if not is_left(name)]
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)

    def is_worked(self, name: str) -> bool:
        """Whether `name` is being worked."""
        return name in self._running

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = self._heap[0][0] if self._heap else float("inf")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._timer_due, self._start_due) if self._heap else None

    def _start_due(self) -> None:
        """Start what has become due, and set the timer for what is due next."""
        now = asyncio.get_running_loop().time()
        while self._heap and self._heap[0][0] <= now:
            due, _, name = heapq.heappop(self._heap)
            if self._due.get(name) == due:
                self.add(name)
        self._set_timer()

    def _start(self, name: str) -> None:
        if not self.is_draining:
            self._running[name] = asyncio.create_task(self._attempt(name), name=f"work {name}")

    async def _attempt(self, name: str) -> None:
        try:
            await self._work(name)
            self._failures.pop(name, None)
        except Exception as error:  # the boundary: whatever went wrong is tried again
            self._note_failure()
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            delay = back_off(failures)
            _log.warning(
                "work failed",
                object=name,
                error=f"{type(error).__name__}: {error}",
                failures=failures,
                again_in=round(delay, 1),
                exc_info=not isinstance(error, EXPECTED),
            )
            self.add_after(name, delay)
        finally:
            del self._running[name]
            if name in self._dirty:
                self._dirty.discard(name)
                self._start(name)
