"""The heartbeat through the watch: a dead feed ends the process, a dead API server does not."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_operator.health import Heartbeat
from tests.fakes.clock import in_virtual_time


class Ended(BaseException):
    """The process would be gone."""


def end(code: int) -> None:
    raise Ended(code)


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", end)


async def beat(renew: Callable[[Heartbeat], Awaitable[None]], seconds: float) -> Heartbeat:
    async def call() -> None:
        await renew(heartbeat)

    heartbeat = Heartbeat(call, 10)
    running = asyncio.create_task(heartbeat.run())
    await asyncio.wait({running}, timeout=seconds)
    if running.done():
        running.result()
    running.cancel()
    return heartbeat


async def show(heartbeat: Heartbeat) -> None:
    asyncio.get_running_loop().call_later(0.1, heartbeat.hear, "")


async def show_nothing(_: Heartbeat) -> None:
    """A renewal that the feed does not show."""


async def fail(_: Heartbeat) -> None:
    raise KubernetesUnavailable("away")


@in_virtual_time
async def test_returned_heartbeats_keep_the_process_running() -> None:
    heartbeat = await beat(show, 10_000)
    assert heartbeat.age <= 10


@in_virtual_time
async def test_lost_heartbeats_end_the_process() -> None:
    with pytest.raises(Ended):
        await beat(show_nothing, 60)


@in_virtual_time
async def test_fewer_than_three_lost_heartbeats_do_not_end_it() -> None:
    heartbeat = await beat(show_nothing, 29)
    assert heartbeat.age == float("inf")


@in_virtual_time
async def test_watch_has_time_to_recover_after_outage() -> None:
    calls = 0

    async def flap(_: Heartbeat) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KubernetesUnavailable("away")

    await beat(flap, 300)


@in_virtual_time
async def test_wait_ends_with_the_first_heartbeat() -> None:
    async def renew() -> None:
        """A renewal that the feed does not show."""

    heartbeat = Heartbeat(renew, 10)
    running = asyncio.create_task(heartbeat.run())
    waiting = asyncio.create_task(heartbeat.wait_heard())
    await asyncio.sleep(15)
    assert not waiting.done()
    heartbeat.hear("")
    await asyncio.wait_for(waiting, 1)
    running.cancel()


@in_virtual_time
async def test_unavailable_api_server_does_not_end_the_process() -> None:
    await beat(fail, 10_000)
