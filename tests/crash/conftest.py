"""A gateway for the crash tests. Each file leaves it whole, and the next file has it then."""

import asyncio
from collections.abc import Iterator

import pytest

from gateway_cli.local.processes import BACKENDS, GATEWAY
from gateway_core.billing.redis_counters import Counters
from tests.servers.tenants import open_tenant
from tests.servers.world import World

FUNDS = {"paidMicros": 1_000_000_000_000}
LIMIT = {"micros": 1_000_000_000_000, "window": "7d"}


@pytest.fixture(scope="session")
def standing() -> Iterator[list[World]]:
    """The gateway that files share, once one of them has started it."""
    worlds: list[World] = []
    yield worlds
    for running in worlds:
        running.__exit__()


@pytest.fixture(scope="module")
def shared_world(request, standing, control_plane) -> Iterator[World]:
    """The gateway that files share; it is ended after a file that has failed with it."""
    if not standing:
        standing.append(World(control_plane).__enter__())
    before = request.session.testsfailed
    yield standing[0]
    is_whole = all(standing[0].is_alive(name) for name in (*BACKENDS, *GATEWAY) if name != "mcp")
    if request.session.testsfailed > before or not is_whole:
        standing.pop().__exit__()
    else:
        asyncio.run(behave(standing[0]))


async def behave(world: World) -> None:
    """Ends what the provider was told to do."""
    async with world.client() as client:
        await client.simulate()


@pytest.fixture(scope="module")
def world(shared_world):
    """All processes, none restarted automatically; the control plane is that of other tests too."""
    return shared_world


@pytest.fixture(scope="module")
def unattended_world(shared_world):
    """A gateway whose own operator has been ended: tests bring theirs."""
    shared_world.run.kill("operator")
    yield shared_world
    shared_world.run.restart("operator", {})


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
    redis = Counters(world.redis, namespace=world.config.namespace)
    yield redis
    await redis.close()
