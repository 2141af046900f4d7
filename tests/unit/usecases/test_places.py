"""Places that are waited for: no longer than told, and in turn. See also `operator/test_places`."""

import asyncio

import pytest

from gateway_core.concurrency import NoPlace, Places
from tests.fakes.clock import in_virtual_time


@in_virtual_time
async def test_nobody_waits_longer_than_he_says() -> None:
    places, clock = Places(1), asyncio.get_running_loop().time
    async with places.take("a"):
        began = clock()
        with pytest.raises(NoPlace):
            async with places.take("b", 5):
                pytest.fail("there are two")
        assert clock() - began == pytest.approx(5)
        assert places.waiting == 0
    async with places.take("b", 5):
        pass


@in_virtual_time
async def test_those_who_hold_as_little_take_turns() -> None:
    places, served = Places(1), list[str]()

    async def work(holder: str) -> None:
        async with places.take(holder):
            served.append(holder)
            await asyncio.sleep(1)

    await asyncio.gather(*(work(holder) for holder in ["a"] * 5 + ["b", "c"] * 3))
    # the first is served at once
    assert "".join(served[1:]) == "abcabcabca"


@in_virtual_time
async def test_no_holder_gets_more_than_the_most() -> None:
    places = Places(100, most=2)
    async with places.take("a"), places.take("a"), places.take("b"):
        with pytest.raises(NoPlace):
            async with places.take("a", 1):
                pytest.fail("has a third")
    assert places.running == 0
