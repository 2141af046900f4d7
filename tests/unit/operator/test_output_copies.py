"""Places for copies: bounded, in turn, and never all held by those who are slow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from gateway_core.concurrency import FairSemaphore
from gateway_core.files.addresses import MediaSigner
from gateway_core.providers.upstream import Download
from gateway_operator.tasks.calls import PLACES, Outputs
from tests.fakes.clock import in_virtual_time
from tests.fakes.objects import FakeObjects
from tests.fakes.upstream import FakeUpstream

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Crowd:
    """Those who hold a place until told to go."""

    def __init__(self, places: FairSemaphore) -> None:
        self.places = places
        self.inside: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.gate = asyncio.Event()

    async def come(self, holder: str, count: int) -> int:
        """How many of them are inside once everybody who can has entered."""
        self.tasks += [asyncio.create_task(self._stay(holder)) for _ in range(count)]
        return await self.count(holder)

    async def count(self, holder: str) -> int:
        await asyncio.sleep(1)
        return self.inside.count(holder)

    async def _stay(self, holder: str) -> None:
        async with self.places.take(holder):
            self.inside.append(holder)
            try:
                await self.gate.wait()
            finally:
                self.inside.remove(holder)


@in_virtual_time
async def test_there_is_always_room_for_a_newcomer() -> None:
    crowd = Crowd(FairSemaphore(32))
    assert [await crowd.come(f"slow-{n}", 100) for n in range(5)] == [16, 8, 4, 2, 1]
    assert await crowd.come("new", 100) == 1
    crowd.gate.set()
    await asyncio.gather(*crowd.tasks)
    assert crowd.inside == []


@in_virtual_time
async def test_holders_with_fewest_slots_enter_first() -> None:
    crowd = Crowd(FairSemaphore(12))
    assert await crowd.come("a", 50) == 6
    assert await crowd.come("b", 50) == 3
    for task in crowd.tasks[:3]:
        task.cancel()
    assert await crowd.count("b") == 4
    assert await crowd.count("a") == 4
    for task in crowd.tasks:
        task.cancel()
    await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert await crowd.come("a", 50) == 6


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@in_virtual_time
async def test_cancelled_waiter_keeps_no_slot(turns: int) -> None:
    places = FairSemaphore(2)
    first, second = Crowd(places), Crowd(places)
    await first.come("a", 1)
    await second.come("a", 1)
    first.gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    second.tasks[0].cancel()
    await asyncio.gather(*first.tasks, *second.tasks, return_exceptions=True)
    third = Crowd(places)
    assert await third.come("a", 1) == 1
    assert await third.come("b", 1) == 1


class Dripping(FakeUpstream):
    """Its outputs never end."""

    @asynccontextmanager
    async def fetch(self, url: str) -> AsyncIterator[Download]:
        async def chunks() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(1)

        yield Download("video/mp4", chunks())


@in_virtual_time
async def test_slow_outputs_do_not_delay_other_providers() -> None:
    store = FakeObjects()
    outputs = Outputs(store, MediaSigner(b"m" * 32), "https://media.example")
    slow = [Dripping() for _ in range(4)]
    copies = [
        asyncio.create_task(outputs.copy(one, f"slow-{n}", ["u"], NOW))
        for one in slow
        for n in range(PLACES)
    ]
    await asyncio.sleep(10)
    well = FakeUpstream()
    async with asyncio.timeout(5):
        videos = await asyncio.gather(
            *(outputs.copy(well, f"well-{n}", ["https://p/v.mp4"], NOW) for n in range(8))
        )
    assert len(videos) == 8
    assert not any(copy.done() for copy in copies)
    for copy in copies:
        copy.cancel()
    await asyncio.gather(*copies, return_exceptions=True)
