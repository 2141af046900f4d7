"""Loops that raise are restarted, counted and logged; cancellation ends them."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from gateway_core.concurrency import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    STEADY_SECONDS,
    Supervisor,
    back_off,
)
from tests.fakes.clock import in_virtual_time


class Loop:
    """Fails after `seconds`, each time that it is run."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.begun: list[float] = []
        self._seconds = seconds
        self._error = error or RuntimeError("File descriptor 25 is used by transport")

    async def run(self) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._seconds)
        raise self._error

    @property
    def pauses(self) -> list[float]:
        return [b - a - self._seconds for a, b in pairwise(self.begun)]


async def keep(loop: Loop, seconds: float) -> Counter[str]:
    counted = Counter[str]()
    task = asyncio.create_task(
        Supervisor(lambda name: counted.update([name])).keep("watch", loop.run)
    )
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return counted


@in_virtual_time
async def test_loop_that_raises_is_restarted_with_back_off() -> None:
    loop = Loop()
    counted = await keep(loop, 3600)
    assert counted == {"watch": len(loop.begun)}
    assert loop.pauses[0] <= FIRST_SECONDS * 1.2
    assert LONGEST_SECONDS * 0.8 <= max(loop.pauses) <= LONGEST_SECONDS * 1.2


@in_virtual_time
async def test_back_off_begins_anew_after_a_steady_run() -> None:
    loop = Loop(STEADY_SECONDS + 1)
    await keep(loop, 3600)
    assert max(loop.pauses) <= FIRST_SECONDS * 1.2


@in_virtual_time
async def test_unexpected_failure_is_logged_with_its_traceback() -> None:
    with capture_logs() as logs:
        await keep(Loop(), 0.1)
    (line,) = logs
    assert line["loop"] == "watch"
    assert line["error"] == "RuntimeError: File descriptor 25 is used by transport"
    assert line["exc_info"] is True


@in_virtual_time
async def test_loop_that_ends_by_itself_is_restarted() -> None:
    async def end() -> None:
        runs.append(None)

    runs: list[None] = []
    task = asyncio.create_task(Supervisor().keep("odd", end))
    await asyncio.sleep(60)
    assert len(runs) > 3
    task.cancel()


async def test_loop_that_may_end_ends() -> None:
    async def end() -> None:
        return None

    await Supervisor().keep("closing", end, may_end=True)


@in_virtual_time
async def test_cancellation_by_something_else_does_not_end_a_loop() -> None:
    async def wait() -> None:
        waited = asyncio.get_running_loop().create_future()
        waited.cancel()
        runs.append(None)
        await waited

    runs: list[None] = []
    task = asyncio.create_task(Supervisor().keep("odd", wait))
    await asyncio.sleep(60)
    assert len(runs) > 3
    assert not task.done()
    task.cancel()


def test_expected_failure_is_neither_counted_nor_traced() -> None:
    counted: list[str] = []
    with (
        capture_logs() as logs,
        Supervisor(counted.append).guard("sweep", ConnectionError, account="a") as attempt,
    ):
        raise ConnectionError("away")
    assert attempt.failed
    assert counted == []
    (line,) = logs
    assert (line["log_level"], line["account"]) == ("warning", "a")
    assert "exc_info" not in line


async def test_what_a_callback_raises_is_counted() -> None:
    counted: list[str] = []
    loop = asyncio.get_running_loop()

    def fail() -> None:
        raise RuntimeError("odd")

    Supervisor(counted.append).watch_event_loop()
    with capture_logs() as logs:
        loop.call_soon(fail)
        await asyncio.sleep(0.01)
    assert counted == ["event_loop"]
    assert logs[0]["error"] == "RuntimeError: odd"


@pytest.mark.parametrize("failures", [1, 5, 1000])
def test_back_off_is_bounded(failures: int) -> None:
    assert 0.1 <= back_off(failures) <= LONGEST_SECONDS * 1.2
