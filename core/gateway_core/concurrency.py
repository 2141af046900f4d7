"""The project's semaphore, time limits on other systems, back-off and supervision of loops."""

import asyncio
import random
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import structlog

T = TypeVar("T")
R = TypeVar("R")

LATE_SECONDS = 0.1
"""A timer that fires so much too late shows that the process was paused."""
GRACE_SECONDS = 0.5
"""Extra time after a pause, to read responses that have already arrived."""


class WaitLimit:
    """Time limit in seconds for a wait on another system. Raises TimeoutError.

    Unlike `asyncio.timeout` it tolerates a pause of this process (CPU throttling, a long callback):
    an answer that arrived during the pause is read within 0.5 s more, instead of being lost.
    """

    __slots__ = ("_scope", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        self._timer = loop.call_at(due, self._look, loop, due)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        # replaces the cancellation that this timeout caused by TimeoutError
        await self._scope.__aexit__(kind, error, traceback)

    def stop(self) -> None:
        """Let the rest of the block take any time."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if loop.time() - due > LATE_SECONDS:
            self._timer = loop.call_later(GRACE_SECONDS, self._end, loop)
        else:
            self._end(loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        # cancels the block now
        self._scope.reschedule(loop.time())


FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A loop that ran this long before it failed restarts with the first delay."""

_log = structlog.get_logger(__name__)


def back_off(
    failures: int, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS
) -> float:
    """Seconds to wait after so many failures in a row: exponential, with 20 % jitter."""
    delay = min(longest, first * 2.0 ** min(failures - 1, 16))
    return delay * random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, hides nothing


@dataclass(slots=True)
class Attempt:
    """Result of a guarded block."""

    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether the block raised."""
        return self.error is not None


class Supervisor:
    """Restarts the long-lived loops of a process when they raise.

    An unexpected exception is logged with its traceback and counted: `count` is called with the
    name of the loop. Only cancellation ends a supervised loop.
    """

    def __init__(self, count: Callable[[str], None] = lambda _loop: None) -> None:
        self._count = count

    @contextmanager
    def guard(self, loop: str, *expected: type[Exception], **facts: object) -> Iterator[Attempt]:
        """Log exceptions of the block, one step of a loop, instead of raising them.

        `expected` exceptions mean that another system is unavailable; they are logged in one line
        and not counted. `facts` are added to the log line.
        """
        attempt = Attempt()
        try:
            yield attempt
        except expected as error:
            attempt.error = error
            _log.warning("step failed", loop=loop, error=_describe(error), **facts)
        except Exception as error:
            attempt.error = error
            self._count(loop)
            _log.exception("unexpected failure", loop=loop, error=_describe(error), **facts)

    async def keep(
        self,
        loop: str,
        run: Callable[[], Awaitable[object]],
        *,
        longest: float = LONGEST_SECONDS,
        may_end: bool = False,
    ) -> None:
        """Await `run()`, again and again after a back-off of at most `longest` seconds.

        Until cancelled. A `run` that returns has failed, unless it `may_end`.
        """
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            begun = clock()
            with self.guard(loop) as attempt:
                try:
                    await run()
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # a future was cancelled that the loop awaited, not the loop itself
                    raise RuntimeError("a wait was cancelled") from error
                if not may_end:
                    raise RuntimeError("ended by itself")
            if not attempt.failed:
                return
            failures = 1 if clock() - begun >= STEADY_SECONDS else failures + 1
            await asyncio.sleep(back_off(failures, longest=longest))

    def watch_event_loop(self) -> None:
        """Log and count exceptions of callbacks and of tasks that are never awaited."""

        def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            # a gather that was cancelled and is not awaited: a cancellation is no failure
            if isinstance(error, asyncio.CancelledError):
                return
            self._count("event_loop")
            _log.error(
                "unexpected failure",
                loop="event_loop",
                error=context["message"] if error is None else _describe(error),
                where=context["message"],
                exc_info=error,
            )

        asyncio.get_running_loop().set_exception_handler(handle)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


async def map_bounded(
    most: int, function: Callable[[T], Awaitable[R]], items: Iterable[T]
) -> list[R]:
    """Results of `function` for all items, in order, with at most `most` calls at a time.

    The first exception cancels the other calls and is raised as it is.
    """
    wanted = list(items)
    results: dict[int, R] = {}
    places = iter(range(len(wanted)))

    async def work() -> None:
        # all workers draw from one iterator
        for place in places:
            results[place] = await function(wanted[place])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(most, len(wanted))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[place] for place in range(len(wanted))]


class SingleFlight(Generic[T]):
    """Lets concurrent calls for one key share a run, which outlives cancelled callers."""

    def __init__(self) -> None:
        self._running: dict[object, asyncio.Task[T]] = {}

    async def run(self, key: object, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the current run for `key`, or of a new one."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(function())
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)


class AcquireTimeout(Exception):
    """No unit of a semaphore became free in time."""


class FairSemaphore:
    """Semaphore of `total` units whose holders (accounts, mostly) share it fairly.

    A holder may take more only while its part of what it and the free units are together is at most
    `alone / total`, by default one half: then a single holder gets half of all, the next one half
    of the rest, and a newcomer finds a free unit until about log2(total) holders hold their part.
    `alone=total` lets any holder take whatever is free. `per_holder` bounds each holder besides.

    Of the waiting holders the one with the fewest units is served first, those with equally many in
    turn, each in the order of its calls; one that waits for several units is not passed by others,
    unless its own units are in its way. `take` raises `error()` after `seconds`, or at once where
    `most_waiting` calls of the holder wait already. For one event loop.
    """

    def __init__(
        self,
        total: int,
        *,
        alone: int | None = None,
        per_holder: int | None = None,
        seconds: float | None = None,
        most_waiting: int = sys.maxsize,
        error: Callable[[], Exception] = AcquireTimeout,
    ) -> None:
        self._total = total
        self._free = total
        # the ratio of a holder's units to the free ones, which `resize` keeps
        self._part, self._rest = (1, 1) if alone is None else (alone, max(0, total - alone))
        self._per_holder = per_holder
        self._seconds = seconds
        self._most_waiting = most_waiting
        self._error = error
        self._held: Counter[object] = Counter()
        self._waiting: dict[object, deque[tuple[asyncio.Future[None], int]]] = {}

    @property
    def held(self) -> int:
        """Units in use."""
        return self._total - self._free

    @property
    def waiting(self) -> int:
        """Calls that wait for a unit."""
        return sum(map(len, self._waiting.values()))

    def has_room(self, holder: object, size: int = 1) -> bool:
        """Whether the holder may take `size` units now."""
        if size > self._free or not self._may_hold(holder, size):
            return False
        wanted = self._held[holder] + size
        return (wanted - 1) * self._rest < (self._free - size + 1) * self._part

    def acquire_nowait(self, holder: object, size: int = 1) -> None:
        """Take `size` units, be there room or not; ask `has_room` first."""
        self._free -= size
        self._held[holder] += size

    async def acquire(self, holder: object, size: int = 1) -> None:
        """Wait for `size` units and take them, to be returned with `release`."""
        if not self._waiting and self.has_room(holder, size):
            self.acquire_nowait(holder, size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append((turn, size))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(holder, (turn, size))
            else:  # the units were given in the same loop iteration as the cancellation
                self.release(holder, size)
            raise

    def release(self, holder: object, size: int = 1) -> None:
        """Return `size` units of the holder and serve the waiting holders."""
        self._free += size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]
        self._serve()

    def resize(self, total: int) -> None:
        """Change the number of units; holders keep theirs, even beyond the new number."""
        self._free += total - self._total
        self._total = total
        self._serve()

    async def wait(self, holder: object, size: int = 1) -> None:
        """Take `size` units, to be returned with `release`, within the bounds of the wait."""
        if not self._waiting and self.has_room(holder, size):
            self.acquire_nowait(holder, size)
            return
        if len(self._waiting.get(holder, ())) >= self._most_waiting:
            raise self._error()
        try:
            async with asyncio.timeout(self._seconds):
                await self.acquire(holder, size)
        except TimeoutError:
            raise self._error() from None

    @asynccontextmanager
    async def take(self, holder: object, size: int = 1) -> AsyncIterator[None]:
        """Hold `size` units for the block, after the wait for them."""
        await self.wait(holder, size)
        try:
            yield
        finally:
            self.release(holder, size)

    def _may_hold(self, holder: object, size: int) -> bool:
        # a Counter returns 0 for an unknown key without storing it
        return self._per_holder is None or self._held[holder] + size <= self._per_holder

    def _serve(self) -> None:
        while self._free > 0 and self._waiting:
            holders = [
                holder
                for holder, turns in self._waiting.items()
                if self._may_hold(holder, turns[0][1])
            ]
            if not holders:
                return
            poorest = min(holders, key=self._held.__getitem__)
            # of single units, a holder with fewer has room whenever one with more has
            if not self.has_room(poorest, self._waiting[poorest][0][1]):
                return
            turns = self._waiting.pop(poorest)
            turn, size = turns.popleft()
            if turns:
                # behind other holders with equally few units
                self._waiting[poorest] = turns
            if not turn.cancelled():
                self.acquire_nowait(poorest, size)
                turn.set_result(None)

    def _withdraw(self, holder: object, entry: tuple[asyncio.Future[None], int]) -> None:
        turns = self._waiting.get(holder, deque())
        # `_serve` may have dropped a cancelled turn already
        if entry in turns:
            turns.remove(entry)
            if not turns:
                del self._waiting[holder]
            # others may have waited behind it
            self._serve()


class HeldUnits:
    """Units of semaphores that a request holds until `release`, or to the end of a `with`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[tuple[FairSemaphore, object, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def take(self, semaphore: FairSemaphore, holder: object, size: int = 1) -> None:
        """Hold `size` units more, after the wait for them, which raises as `FairSemaphore.wait`."""
        await semaphore.wait(holder, size)
        self._held.append((semaphore, holder, size))

    def hand_over(self) -> "HeldUnits":
        """All units, to be released by another; none stay here."""
        other = HeldUnits()
        self._held, other._held = other._held, self._held
        return other

    def release(self) -> None:
        """Return all units. Repeatable."""
        while self._held:
            semaphore, holder, size = self._held.pop()
            semaphore.release(holder, size)
