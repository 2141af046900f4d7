"""An event loop whose time passes when nothing else is to be done.

Hours of back-off take milliseconds, and the same test runs the same way every time. What waits for
another process or thread must stay out of it.
"""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

P = ParamSpec("P")
T = TypeVar("T")
START = 1000.0


class _Selector(selectors.SelectSelector):
    """Waits for nobody: the time-out it is given is let pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits for ever")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` is what `time.monotonic` is too, inside of `in_virtual_time`."""

    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds since some moment before the start."""
        return self._skipping.now


def in_virtual_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs a test in a loop of its own, in which waiting takes no time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()
        with (
            patch("time.monotonic", loop.time),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            runner.run(test(*args, **kwargs))  # type: ignore[arg-type]

    return run


async def run_to_end(work: Callable[[], Awaitable[T]]) -> T:
    """Awaits `work`, which goes on even if the one who waits is cancelled."""

    async def run() -> T:
        return await work()

    task = asyncio.create_task(run())
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await asyncio.shield(task)
