"""Gateways for the crash tests. Each test leaves its own whole, and the next file has it then."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway_cli.local.processes import CONTROL_PLANE, PROCESSES
from gateway_core.billing.redis_counters import Counters
from tests.servers.tenants import open_tenant
from tests.servers.world import World

FUNDS = {"paidMicros": 1_000_000_000_000}
LIMIT = {"micros": 1_000_000_000_000, "window": "7d"}


@pytest.fixture(scope="session")
def standing() -> Iterator[dict[str, World]]:
    """The gateways that files share, by the process that has been ended for good."""
    worlds: dict[str, World] = {}
    yield worlds
    for running in worlds.values():
        running.__exit__()


@pytest.fixture(scope="module")
def world(request, standing):
    """All processes with a control plane of their own, none restarted automatically."""
    yield from lend(request, standing, without="")


@pytest.fixture(scope="module")
def unattended_world(request, standing):
    """A gateway whose own operator has been ended: tests bring theirs."""
    yield from lend(request, standing, without="operator")


def lend(request, standing: dict[str, World], *, without: str) -> Iterator[World]:
    """One that stands already, or a new one; it is ended after a file that has failed with it."""
    if without not in standing:
        # tests end the whole gateway's control plane too
        running = World(request.getfixturevalue("control_plane") if without else None)
        running.__enter__()
        standing[without] = running
        if without:
            running.run.kill(without)
    before = request.session.testsfailed
    yield standing[without]
    shared = {*CONTROL_PLANE} if without else set()
    living = {name for name in PROCESSES if standing[without].is_alive(name)}
    if request.session.testsfailed > before or living != {*PROCESSES} - {without, "mcp"} - shared:
        standing.pop(without).__exit__()
    else:
        asyncio.run(behave(standing[without]))


async def behave(world: World) -> None:
    """Ends what the provider was told to do."""
    async with world.client() as client:
        await client.simulate()


@pytest.fixture
async def payer(world):
    """A client of an account of its own, with money and a rate for any load.

    Its key has a limit, and so has its guardrail, which no load comes up to.
    """
    async with open_tenant(world, funds=FUNDS, limit=LIMIT, requestsPerMinute=1_000_000) as client:
        yield client


@pytest.fixture
async def counters(world):
    """The counters of the gateway."""
    redis = Counters(
        f"redis://127.0.0.1:{world.config.ports.redis}/0", namespace=world.config.namespace
    )
    yield redis
    await redis.close()
