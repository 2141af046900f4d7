"""A limit on the wait for another system that does not take an own pause for the other's silence.

After a pause of this process, of a throttled pod or a busy machine, a timer that came due meanwhile
goes off before the answers are read that arrived meanwhile. So a pause over the end of the limit is
followed by time to read them; one that ends before it counts like any other time.
"""

import asyncio
from types import TracebackType
from typing import Self

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
