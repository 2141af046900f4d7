"""Time limits on other systems, back-off, supervision of loops, and bounded concurrent work."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
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
    """Return seconds to wait after so many failures in a row: exponential, with 20 % jitter."""
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
        """Return the result of the current run for `key`, or of a new one."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(function())
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)
