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
    """Waits for nobody: the time-out it is given is let pass at once.

    `look` is called before, as nothing else happens at this moment; true has time stand still.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        super().__init__()
        self.now = START
        self._look = look

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:
            return []
        ready = super().select(0)
        if ready or self._look():
            return ready
        if timeout is None:
            raise RuntimeError("everything waits for ever")
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` is what `time.monotonic` is too, inside of `in_virtual_time`."""

    def __init__(self) -> None:
        self._skipping = _Selector(self._look)
        self._awaited: dict[asyncio.Future[None], Callable[[], Any]] = {}
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds since some moment before the start."""
        return self._skipping.now

    async def wait_until(self, condition: Callable[[], Any], seconds: float, what: str) -> None:
        """Return at the first moment at which `condition` is true; fail after `seconds`."""
        if condition():
            return
        waiting = self.create_future()
        self._awaited[waiting] = condition
        try:
            async with asyncio.timeout(seconds):
                await waiting
        except TimeoutError:
            raise AssertionError(f"{what} did not come true in {seconds} s") from None
        finally:
            del self._awaited[waiting]

    def _look(self) -> bool:
        """Wake those whose condition has come true; whether there are any."""
        came_true = False
        for waiting, condition in self._awaited.items():
            if waiting.done():
                continue
            try:
                if not condition():
                    continue
                waiting.set_result(None)
            except Exception as error:  # of the test that waits, and not of the loop
                waiting.set_exception(error)
            came_true = True
        return came_true


async def wait_until(
    condition: Callable[[], Any], *, seconds: float = 60, what: str = "condition"
) -> None:
    """Let time pass until `condition` is true; it is looked at whenever something has happened."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    await loop.wait_until(condition, seconds, what)


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
