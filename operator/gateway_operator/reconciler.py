"""The work queue, the newest known objects and writes to them, and the reconciler on top.

Level-triggered: each step is decided from the newest object, so events may be lost, repeated or
reordered, and a process that is killed anywhere leaves nothing that another cannot continue.

The queue has the semantics of client-go's: a name that is added while it is being worked is worked
once more afterwards, so the event of an own write is never handled at the same time as the next
step. Concurrency is bounded by the calls that the work makes, not by the number of names.
"""

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, ValuesView
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from gateway_core.api.resource import Object, Resource
from gateway_core.concurrency import back_off
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    KubernetesError,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable

_log = structlog.get_logger(__name__)


EXPECTED = (
    KubernetesError,
    StoreUnavailable,
    CountersUnavailable,
    CountersStale,
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
        """Return whether `name` is being worked."""
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
            # superseded entries stay in the heap until they are due: to remove one costs O(n)
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
        except Exception as error:  # the boundary: every failure is retried
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
            # only here: two tasks on one name could each write from what the other has changed
            del self._running[name]
            if name in self._dirty:
                self._dirty.discard(name)
                self._start(name)


R = TypeVar("R", bound=Resource)


class ObjectCache(Generic[R]):
    """Objects by name. Never goes back to an older version.

    They are kept as they were read and parsed at each `get`: parsed ones take several times the
    memory, and of ten thousands of tasks only a few are being worked at any moment.
    """

    def __init__(self, kind: type[R], *, most_gone: int = 20_000) -> None:
        self.kind = kind
        self._objects: dict[str, Object] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._most_gone = most_gone

    def __len__(self) -> int:
        """Number of objects."""
        return len(self._objects)

    def __contains__(self, name: str) -> bool:
        """Return whether an object of that name is known."""
        return name in self._objects

    def get(self, name: str) -> R | None:
        """Return the newest known object."""
        obj = self._objects.get(name)
        return None if obj is None else self.kind.load(obj)

    def names(self) -> list[str]:
        """Return a copy of all names."""
        return list(self._objects)

    def objects(self) -> ValuesView[Object]:
        """Return a live view of all objects, unparsed."""
        return self._objects.values()

    def version(self, name: str) -> int:
        """Return the known resourceVersion of `name`, -1 if it is unknown."""
        obj = self._objects.get(name)
        return -1 if obj is None else int(obj["metadata"]["resourceVersion"])

    def is_newest(self, resource: R) -> bool:
        """Return whether the resource was loaded from the object that is known now."""
        return self._objects.get(resource.metadata.name) is resource.source

    def is_known(self, name: str, version: int) -> bool:
        """Return whether that version, or a newer one, was seen or is known to be of the past."""
        return version <= max(self.version(name), self._gone.get(name, -1))

    def was_dropped(self, name: str) -> bool:
        """Return whether an object of that name was forgotten of late."""
        return name in self._gone

    def upsert(self, obj: Object) -> bool:
        """Keep an object unless it or a newer one is known; whether it was kept.

        `managedFields` is dropped: it is half of the object, and no controller reads it.
        """
        meta = obj["metadata"]
        if self.is_known(meta["name"], int(meta["resourceVersion"])):
            return False
        meta.pop("managedFields", None)
        self._objects[meta["name"]] = obj
        return True

    def drop(self, name: str, version: int = -1) -> None:
        """Forget an object, and for a while ignore older events that show it.

        `version` is the newest that is known to be of the past.
        """
        # the response to an own write and the watch are two connections: an event that was sent
        # before the deletion may arrive after it was read by name
        gone = max(version, self.version(name), self._gone.pop(name, -1))
        self._objects.pop(name, None)
        if gone >= 0:
            self._gone[name] = gone
        if len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)


class StatusWriter(Generic[R]):
    """Compare-and-set writes to the newest objects. KubernetesUnavailable: nothing was done.

    Superseded where a write does not land: the object has been read anew by then.
    """

    def __init__(self, kube: KubernetesClient, cache: ObjectCache[R]) -> None:
        self._kube = kube
        self._cache = cache

    async def commit(self, resource: R, status: Mapping[str, Any]) -> None:
        """Merge `status` into the resource's status."""
        await self._write(self._kube.patch_status, resource, status)

    async def amend(self, resource: R, patch: Mapping[str, Any]) -> R:
        """Merge `patch` into metadata or spec; the new resource."""
        return self._cache.kind.load(await self._write(self._kube.patch, resource, patch))

    async def refresh(self, name: str) -> R | None:
        """Read an object by name into the cache; None, and forgotten, if it is gone."""
        try:
            self._cache.upsert(await self._kube.get(self._cache.kind.plural, name))
        except ObjectNotFound:
            self._cache.drop(name)
        return self._cache.get(name)

    async def _write(
        self,
        write: Callable[[str, Object, Mapping[str, Any]], Awaitable[Object]],
        resource: R,
        change: Mapping[str, Any],
    ) -> Object:
        name = resource.metadata.name
        try:
            new = await write(self._cache.kind.plural, resource.source, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown) as error:
            # the read shows whether a write without a response has landed; never repeat it blindly
            await self.refresh(name)
            raise Superseded(f"{name}: {error}") from error
        self._cache.upsert(new)
        return new


T = TypeVar("T")

MOST_CONFLICTS = 3
"""Writes in a row that another writer was ahead of, before the work queue's back-off applies."""
CONFLICT_SECONDS = 0.2


class Superseded(Exception):
    """Another writer changed the object during a step. It was read anew: decide again."""


class Draining(Exception):
    """The process is shutting down, so nothing more is begun."""


@dataclass(frozen=True, slots=True)
class Next:
    """The successor of a step: at once, after `seconds`, or none.

    In either case a change of the object starts the next step too.
    """

    at_once: bool = False
    seconds: float | None = None


AT_ONCE = Next(at_once=True)
ON_CHANGE = Next()


def after(seconds: float) -> Next:
    """Another step after a delay, unless the object changes before."""
    return Next(seconds=seconds)


class Reconciler(ABC, Generic[T]):
    """Base of all controllers. One work queue for each, one step at a time for each name."""

    def __init__(self, note_failure: Callable[[], None] = lambda: None) -> None:
        self.queue = WorkQueue(self.reconcile, note_failure)

    @abstractmethod
    async def find(self, name: str, /) -> T | None:
        """Return the newest object; None if nothing is left to do for that name."""

    @abstractmethod
    async def step(self, obj: T, /) -> Next:
        """Take the step that is due. Raises Superseded, Draining, and what the stores raise."""

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        self.queue.forget(name)

    def has_begun(self, name: str) -> bool:
        """Return whether work in progress must be completed here, even while the queue drains."""
        return False

    def describe(self, obj: T, /) -> Mapping[str, str | None]:
        """Return fields that log lines of a step carry."""
        return {}

    async def reconcile(self, name: str) -> None:
        """Take steps until the object has to wait. Raises what the stores raise."""
        conflicts = 0
        while True:
            obj = await self.find(name)
            if obj is None:
                self.forget(name)
                return
            if self.queue.is_draining and not self.has_begun(name):
                return
            # the context may be that of the object whose step has added this name
            clear_contextvars()
            bind_contextvars(**{key: text for key, text in self.describe(obj).items() if text})
            try:
                following = await self.step(obj)
            except Draining:
                return
            except Superseded as conflict:
                _log.debug("superseded", object=name, conflict=str(conflict))
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                continue
            except (WriteConflict, ObjectNotFound):
                # the step did not read the newest version: the watch may show it in a moment
                self.queue.add_after(name, CONFLICT_SECONDS)
                return
            conflicts = 0
            if following.seconds is not None:
                self.queue.add_after(name, following.seconds)
            if not following.at_once:
                return
