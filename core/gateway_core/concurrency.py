"""Semaphores, back-off, supervision of loops, and limits on waits for other systems."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog

LATE_SECONDS = 0.1
"""A timer that goes off so much too late tells of a pause."""
GRACE_SECONDS = 0.5
"""Time after a pause to read what has arrived."""


class WaitLimit:
    """`async with WaitLimit(2.0):` raises TimeoutError where that takes over 2 s.

    Over as much as 0.5 s more after a pause.
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
        if self._timer is not None:
            self._timer.cancel()
        # raises TimeoutError in place of the cancellation that it is the cause of
        await self._scope.__aexit__(kind, error, traceback)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if loop.time() - due > LATE_SECONDS:
            self._timer = loop.call_later(GRACE_SECONDS, self._end, loop)
        else:
            self._end(loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scope.reschedule(loop.time())


FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A loop that ran for so long before it failed is restarted with the first delay again."""

_log = structlog.get_logger(__name__)


def back_off(
    failures: int, *, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS
) -> float:
    """Seconds to wait after that many failures in a row: doubled each time, spread by a fifth."""
    delay = min(longest, first * 2.0 ** min(failures - 1, 16))
    return delay * random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, hides nothing


@dataclass(slots=True)
class Attempt:
    """What came of a guarded block."""

    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether the block raised."""
        return self.error is not None


class Supervisor:
    """Keeps a process's long-lived loops alive: none ends it, or ends unnoticed, by an exception.

    An unexpected exception is logged with its traceback and counted: `count` is called with the
    name of the loop. Only cancellation ends a supervised loop.
    """

    def __init__(self, count: Callable[[str], None] = lambda _loop: None) -> None:
        self._count = count

    @contextmanager
    def guard(self, loop: str, *expected: type[Exception], **facts: object) -> Iterator[Attempt]:
        """Ends exceptions of the block, which is one step of a loop.

        `expected` are those that tell of another system that is away; they are logged in one line
        and not counted. `facts` go with the line.
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
        """Awaits `run()`, and again after a back-off of at most `longest` seconds when it raises.

        Until cancelled; returns where `run` returns and it `may_end`, which is a failure otherwise.
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
                    # of a future that something else cancelled: nobody has asked this loop to end
                    raise RuntimeError("a wait was cancelled") from error
                if not may_end:
                    raise RuntimeError("ended by itself")
            if not attempt.failed:
                return
            failures = 1 if clock() - begun >= STEADY_SECONDS else failures + 1
            await asyncio.sleep(back_off(failures, longest=longest))

    def watch_event_loop(self) -> None:
        """Logs and counts what callbacks and forgotten tasks of the running event loop raise."""

        def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
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


class NoPlace(Exception):
    """None came in time."""


class Places:
    """Fair semaphore: a holder gets a further place only while it has fewer than are free.

    So a single holder gets at most half of them, and each that comes later at most half of what is
    then free; of those that wait, the one that has the fewest gets the next. `most` is the most
    that one holder gets in any case: `count / most` holders fill all places, without it about
    log2(count) do.
    """

    def __init__(self, count: int, most: int | None = None) -> None:
        self._count = count
        self._most = count if most is None else most
        self._free = count
        self._held: Counter[object] = Counter()
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}

    @property
    def running(self) -> int:
        """How many places are held."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return sum(map(len, self._waiting.values()))

    def count_waiting(self, holder: object) -> int:
        """How many of the holder's wait."""
        return len(self._waiting.get(holder, ()))

    @asynccontextmanager
    async def take(self, holder: object, seconds: float | None = None) -> AsyncIterator[None]:
        """Waits for a place and holds it; those of one holder in the order of their coming.

        NoPlace where it has to wait for longer than that.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.acquire(holder)
        except TimeoutError:
            raise NoPlace from None
        try:
            yield
        finally:
            self.release(holder)

    async def acquire(self, holder: object) -> None:
        """Waits for a place without a limit; for work that ends outside the caller's scope."""
        if holder not in self._waiting and self._may_enter(holder):
            self._give(holder)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(holder, turn)
            else:  # it came in the same instant
                self.release(holder)
            raise

    def _may_enter(self, holder: object) -> bool:
        return self._held[holder] < min(self._free, self._most)

    def _give(self, holder: object) -> None:
        self._free -= 1
        self._held[holder] += 1

    def release(self, holder: object) -> None:
        """Gives a place of the holder back, to the waiting holder that has the fewest."""
        self._free += 1
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]
        while entitled := [one for one in self._waiting if self._may_enter(one)]:
            poorest = min(entitled, key=lambda one: self._held[one])
            turns = self._waiting.pop(poorest)
            turn = turns.popleft()
            if turns:
                # behind the others, as many may hold as little
                self._waiting[poorest] = turns
            if not turn.cancelled():
                self._give(poorest)
                turn.set_result(None)

    def _withdraw(self, holder: object, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(holder, deque())
        # one that was cancelled may have been passed over already
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[holder]


class CommonPlaces(Places):
    """All of them, to whoever comes; one that gets free is given to who holds least."""

    def _may_enter(self, holder: object) -> bool:
        return self._free > 0
