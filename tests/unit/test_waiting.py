"""A limit on waiting does not take this process's own pause for the other's silence."""

import asyncio
import socket
import time

import pytest

from gateway_core.concurrency import GRACE_SECONDS, WaitLimit
from tests.fakes.clock import in_virtual_time

SECONDS = 0.2
PAUSE = 0.5


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


async def test_what_arrives_in_a_pause_is_read() -> None:
    assert await read_after_pause(answers=True) == b"here"


async def test_a_pause_is_no_reason_to_wait_for_ever() -> None:
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
async def test_what_is_done_in_time_is_never_ended() -> None:
    async with WaitLimit(SECONDS):
        await asyncio.sleep(SECONDS / 2)
    await asyncio.sleep(10 * SECONDS)


@in_virtual_time
async def test_a_cancellation_from_outside_is_none_of_its_own() -> None:
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
async def test_within_another_limit_the_one_that_is_over_tells(inner: float) -> None:
    async def wait() -> None:
        async with asyncio.timeout(11 * SECONDS - inner), WaitLimit(inner):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_in_the_time_after_a_pause_is_one() -> None:
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
