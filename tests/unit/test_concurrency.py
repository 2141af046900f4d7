"""Time limits that excuse a pause of the own process, supervised loops, and semaphores."""

import asyncio
import gc
import socket
import time
from collections import Counter
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from gateway_core.concurrency import (
    FIRST_SECONDS,
    GRACE_SECONDS,
    LONGEST_SECONDS,
    STEADY_SECONDS,
    Supervisor,
    WaitLimit,
    back_off,
)
from gateway_core.fair_semaphore import AcquireTimeout, FairSemaphore
from tests.fakes.clock import in_virtual_time

SECONDS = 0.05
PAUSE = 0.15


async def read_after_pause(*, answers: bool) -> bytes:
    """What arrives while the loop stands still, until after the time that there is."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.setblocking(False)

        def pause() -> None:
            time.sleep(PAUSE)
            if answers:
                theirs.send(b"here")

        loop = asyncio.get_running_loop()
        async with WaitLimit(SECONDS):
            loop.call_later(0.01, pause)
            told = await loop.sock_recv(mine, 16)
            # to make something of it takes a client some turns of the loop
            for _ in range(5):
                await asyncio.sleep(0)
            return told


async def test_data_that_arrives_in_a_pause_is_read() -> None:
    assert await read_after_pause(answers=True) == b"here"


async def test_pause_is_no_reason_to_wait_for_ever() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await read_after_pause(answers=False)
    assert time.monotonic() - began >= PAUSE + 0.9 * GRACE_SECONDS


@in_virtual_time
async def test_without_a_pause_it_ends_on_time() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        async with WaitLimit(SECONDS):
            await asyncio.Event().wait()
    assert loop.time() - began == pytest.approx(SECONDS)


@in_virtual_time
async def test_work_done_in_time_is_not_cancelled() -> None:
    async with WaitLimit(SECONDS):
        await asyncio.sleep(SECONDS / 2)
    await asyncio.sleep(10 * SECONDS)


@in_virtual_time
async def test_cancellation_from_outside_is_none_of_its_own() -> None:
    async def wait() -> None:
        async with WaitLimit(SECONDS):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(SECONDS / 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("inner", [SECONDS, 10 * SECONDS])
@in_virtual_time
async def test_inner_and_outer_limits_each_raise(inner: float) -> None:
    async def wait() -> None:
        async with asyncio.timeout(11 * SECONDS - inner), WaitLimit(inner):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancellation_in_the_time_after_a_pause_is_one() -> None:
    async def wait() -> None:
        async with WaitLimit(0.01):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    time.sleep(0.2)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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


async def test_error_of_a_callback_is_counted() -> None:
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


async def test_cancelled_wait_that_nothing_awaits_is_no_failure() -> None:
    counted: list[str] = []
    Supervisor(counted.append).watch_event_loop()
    waiting = asyncio.gather(asyncio.sleep(60), asyncio.sleep(60))
    with capture_logs() as logs:
        waiting.cancel()
        await asyncio.sleep(0.01)
        del waiting
        gc.collect()
    assert (counted, logs) == ([], [])


@pytest.mark.parametrize("failures", [1, 5, 1000])
def test_back_off_is_bounded(failures: int) -> None:
    assert 0.1 <= back_off(failures) <= LONGEST_SECONDS * 1.2


def fill(semaphore: FairSemaphore, holder: str) -> int:
    count = 0
    while semaphore.has_room(holder):
        semaphore.acquire_nowait(holder)
        count += 1
    return count


def test_single_holder_gets_half_and_each_newcomer_half_of_the_rest() -> None:
    semaphore = FairSemaphore(32)
    assert [fill(semaphore, f"holder-{n}") for n in range(6)] == [16, 8, 4, 2, 1, 1]
    assert semaphore.held == 32


def test_alone_bounds_what_a_single_holder_gets() -> None:
    semaphore = FairSemaphore(640, alone=560)
    assert fill(semaphore, "a") == 560
    assert 60 < fill(semaphore, "b") < 80
    assert fill(semaphore, "c") > 0
    semaphore.release("a", 560)
    assert fill(semaphore, "b") > 300
    assert semaphore.held <= 640


@pytest.mark.parametrize("alone", [5, 9])
def test_holder_takes_everything_where_alone_is_the_total(alone: int) -> None:
    semaphore = FairSemaphore(5, alone=alone)
    assert fill(semaphore, "a") == 5
    assert not semaphore.has_room("b")


def test_size_counts() -> None:
    semaphore = FairSemaphore(100, alone=60)
    assert not semaphore.has_room("a", 61)
    semaphore.acquire_nowait("a", 60)
    assert not semaphore.has_room("b", 40)
    assert semaphore.has_room("b", 24)


@in_virtual_time
async def test_wait_ends_after_its_seconds() -> None:
    semaphore, clock = FairSemaphore(1, seconds=5), asyncio.get_running_loop().time
    async with semaphore.take("a"):
        began = clock()
        with pytest.raises(AcquireTimeout):
            async with semaphore.take("b"):
                pytest.fail("there are two")
        assert clock() - began == pytest.approx(5)
        assert semaphore.waiting == 0
    async with semaphore.take("b"):
        pass


@in_virtual_time
async def test_holders_with_equally_few_take_turns() -> None:
    semaphore, served = FairSemaphore(1), list[str]()

    async def work(holder: str) -> None:
        async with semaphore.take(holder):
            served.append(holder)
            await asyncio.sleep(1)

    await asyncio.gather(*(work(holder) for holder in ["a"] * 5 + ["b", "c"] * 3))
    # the first is served at once
    assert "".join(served[1:]) == "abcabcabca"


@in_virtual_time
async def test_calls_without_a_holder_wait_for_their_turn() -> None:
    semaphore = FairSemaphore(1, alone=1)
    await semaphore.acquire(None)
    waiting = asyncio.create_task(semaphore.acquire(None))
    await asyncio.sleep(0)
    semaphore.release(None)
    async with asyncio.timeout(1):
        await waiting
    assert semaphore.held == 1


@in_virtual_time
async def test_per_holder_bounds_each_holder() -> None:
    semaphore = FairSemaphore(100, per_holder=2, seconds=1)
    async with semaphore.take("a"), semaphore.take("a"), semaphore.take("b"):
        with pytest.raises(AcquireTimeout):
            async with semaphore.take("a"):
                pytest.fail("has a third")
    assert semaphore.held == 0


@in_virtual_time
async def test_wait_for_several_units_is_not_passed_but_by_those_it_does_not_wait_for() -> None:
    semaphore, served = FairSemaphore(4, alone=4, per_holder=3, seconds=9), list[str]()

    async def work(holder: str, size: int, seconds: float) -> None:
        async with semaphore.take(holder, size):
            served.append(f"{holder}{size}")
            await asyncio.sleep(seconds)

    async def work_in_turn(*works: tuple[str, int, float]) -> None:
        async with asyncio.TaskGroup() as group:
            for work_ in works:
                group.create_task(work(*work_))
                await asyncio.sleep(0.1)

    # c waits for free units, before d; what b waits for is its own
    await work_in_turn(("a", 1, 5), ("b", 2, 2), ("b", 2, 1), ("c", 3, 1), ("d", 1, 1))
    assert served == ["a1", "b2", "b2", "c3", "d1"]
    assert (semaphore.held, semaphore.waiting) == (0, 0)


@in_virtual_time
async def test_units_are_served_when_the_wait_before_ends_in_vain() -> None:
    semaphore = FairSemaphore(3, alone=3, seconds=1)
    async with semaphore.take("a"):
        first = asyncio.create_task(semaphore.wait("b", 3))
        await asyncio.sleep(0)
        second = asyncio.create_task(semaphore.acquire("c", 2))
        with pytest.raises(AcquireTimeout):
            await first
        async with asyncio.timeout(0.1):
            await second


@in_virtual_time
async def test_call_is_refused_at_once_where_too_many_of_its_holder_wait() -> None:
    semaphore = FairSemaphore(1, most_waiting=1, error=LookupError)
    async with semaphore.take("a"):
        waiting = asyncio.create_task(semaphore.acquire("a"))
        await asyncio.sleep(0)
        with pytest.raises(LookupError):
            async with semaphore.take("a"):
                pytest.fail("two wait")
    await waiting


@in_virtual_time
async def test_resize_serves_waiters_and_keeps_holders() -> None:
    semaphore = FairSemaphore(3, alone=3)
    for _ in range(3):
        await semaphore.acquire("a")
    semaphore.resize(1)
    waiting = asyncio.create_task(semaphore.acquire("b"))
    semaphore.release("a", 2)
    await asyncio.sleep(1)
    assert not waiting.done()
    semaphore.resize(2)
    await waiting
    assert semaphore.held == 2


@in_virtual_time
async def test_waiting_holder_with_fewest_units_is_served_first() -> None:
    semaphore, served = FairSemaphore(12), list[str]()

    async def enter(holder: str) -> None:
        await semaphore.acquire(holder)
        served.append(holder)

    waiting = [asyncio.create_task(enter(holder)) for holder in ["a"] * 10 + ["b"] * 10]
    await asyncio.sleep(1)
    assert (served.count("a"), served.count("b")) == (6, 3)
    for _ in range(3):
        semaphore.release("a")
    await asyncio.sleep(1)
    assert (served.count("a"), served.count("b")) == (7, 4)
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("iterations", [0, 1, 2, 3])
@in_virtual_time
async def test_waiter_cancelled_as_it_is_served_keeps_no_unit(iterations: int) -> None:
    semaphore = FairSemaphore(2)
    await semaphore.acquire("a")
    waiting = asyncio.create_task(semaphore.acquire("a"))
    await asyncio.sleep(1)
    semaphore.release("a")
    for _ in range(iterations):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    if not waiting.cancelled():
        semaphore.release("a")
    assert (semaphore.held, semaphore.waiting) == (0, 0)
