"""FairSemaphore: shares of holders, order of waiters, time limits."""

import asyncio

import pytest

from gateway_core.concurrency import AcquireTimeout, FairSemaphore
from tests.fakes.clock import in_virtual_time


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
async def test_per_holder_bounds_each_holder() -> None:
    semaphore = FairSemaphore(100, per_holder=2, seconds=1)
    async with semaphore.take("a"), semaphore.take("a"), semaphore.take("b"):
        with pytest.raises(AcquireTimeout):
            async with semaphore.take("a"):
                pytest.fail("has a third")
    assert semaphore.held == 0


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
