"""The heartbeat through the watch: a dead feed ends the process, a dead API server does not."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway_core.kube.errors import KubernetesUnavailable
from gateway_operator import health
from gateway_operator.health import Heartbeat
from tests.fakes.clock import in_virtual_time


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that the process would have been ended."""
    recorded = list[str]()
    monkeypatch.setattr(health, "end_process", lambda: recorded.append("ended"))
    return recorded


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
    asyncio.get_running_loop().call_later(0.1, heartbeat.hear)


async def show_nothing(_: Heartbeat) -> None:
    """A renewal that the feed does not show."""


async def fail(_: Heartbeat) -> None:
    raise KubernetesUnavailable("away")


@in_virtual_time
async def test_returned_heartbeats_keep_the_process_running(ends: list[str]) -> None:
    heartbeat = await beat(show, 10_000)
    assert heartbeat.age <= 10
    assert not heartbeat.is_lost
    assert not ends


@in_virtual_time
async def test_lost_heartbeats_end_the_process_once(ends: list[str]) -> None:
    heartbeat = await beat(show_nothing, 600)
    assert heartbeat.is_lost
    assert ends == ["ended"]


@in_virtual_time
async def test_fewer_than_three_lost_heartbeats_do_not_end_it(ends: list[str]) -> None:
    heartbeat = await beat(show_nothing, 29)
    assert heartbeat.age == float("inf")
    assert not ends


@in_virtual_time
async def test_watch_has_time_to_recover_after_outage(ends: list[str]) -> None:
    calls = 0

    async def flap(_: Heartbeat) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KubernetesUnavailable("away")

    await beat(flap, 300)
    assert not ends


@in_virtual_time
async def test_unavailable_api_server_does_not_end_the_process(ends: list[str]) -> None:
    await beat(fail, 10_000)
    assert not ends
