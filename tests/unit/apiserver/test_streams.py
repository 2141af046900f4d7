"""Bodies that drip, and accounts that send many at a time: neither keeps others from the store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway_core.api.errors import Unavailable
from gateway_core.storage.limits import MOST_STREAM_WAITERS, StreamLimiter
from gateway_core.storage.objects import MOST_STREAMS
from gateway_web.middleware.bodies import (
    IDLE_SECONDS,
    SLOWEST_BYTES,
    BodyMemory,
    RequestBody,
)
from tests.fakes.clock import in_virtual_time
from tests.unit.apiserver.filing import Cabinet, form
from tests.unit.apiserver.gateway import Gateway


async def receive_all(size: int, count: int, pause: float) -> float:
    """Receives `count` pieces of `size` bytes, one each `pause` seconds; the seconds it took."""
    left = count

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": bytes(size), "more_body": left > 0}

    body, clock = (
        RequestBody(receive, {"headers": []}, BodyMemory()),
        asyncio.get_running_loop().time,
    )
    began = clock()
    try:
        while (await body()).get("more_body"):
            pass
    except Unavailable:
        assert left > 0
    else:
        assert left == 0
    return clock() - began


@in_virtual_time
async def test_slow_body_is_ended() -> None:
    assert await receive_all(1, 1000, 5) == pytest.approx(IDLE_SECONDS, abs=5.1)
    assert await receive_all(1, 2, 1000) == pytest.approx(IDLE_SECONDS)


@in_virtual_time
async def test_steady_body_may_take_long() -> None:
    assert await receive_all(2 * SLOWEST_BYTES, 1000, 2) == pytest.approx(2000)
    # a modem's
    assert await receive_all(1024, 8000, 1 / 8) == pytest.approx(1000)
    # no allowance is lost by a pause of the store's
    assert await receive_all(SLOWEST_BYTES, 100, 1.5) == pytest.approx(150)


@in_virtual_time
async def test_parts_of_one_account_wait_for_each_other() -> None:
    places = StreamLimiter()
    most = 0

    async def send() -> None:
        nonlocal most
        async with places.take("a"):
            most = max(most, places.held)
            await asyncio.sleep(50)

    await asyncio.gather(*(send() for _ in range(MOST_STREAMS // 2 + MOST_STREAM_WAITERS)))
    assert most == MOST_STREAMS // 2


@in_virtual_time
async def test_number_of_waiting_streams_is_bounded() -> None:
    places, clock = StreamLimiter(100, per_holder=1), asyncio.get_running_loop().time

    async def send(account: str) -> float:
        began = clock()
        try:
            async with places.take(account):
                await asyncio.sleep(1)
        except Unavailable:
            return clock() - began
        return -1

    told = await asyncio.gather(
        *(send(n) for n in "ab" for _ in range(1 + MOST_STREAM_WAITERS + 2))
    )
    assert [seconds for seconds in told if seconds >= 0] == [0, 0] * 2


@in_virtual_time
async def test_streams_of_one_account_leave_room_for_others() -> None:
    gateway = Gateway()
    one, gate = Cabinet(gateway), asyncio.Event()
    put, under_way = gateway.store.put_stream, 0

    async def slow(key: str, source: AsyncIterator[bytes], *, max_bytes: int) -> Any:
        nonlocal under_way
        under_way += 1
        await gate.wait()
        return await put(key, source, max_bytes=max_bytes)

    gateway.store.put_stream = slow  # type: ignore[method-assign]
    calls = [asyncio.create_task(one.send(form())) for _ in range(MOST_STREAMS // 2 + 1)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    [refused] = done
    answer = refused.result()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert under_way == MOST_STREAMS // 2
    gate.set()
    assert {(await call).status for call in waiting} == {200}
