"""One gateway for the folder, and an account on it that no limit stops."""

import asyncio

import pytest

from tests.servers.tenants import make_key, open_tenant, wait_status
from tests.servers.world import World


@pytest.fixture(scope="session")
def world(control_plane):
    """All processes; jobs take no time, so that the many tasks of generated calls are soon over."""
    with World(
        control_plane, restart=True, extra_env={"simulator": {"GATEWAY_SIMULATOR_SECONDS": "0.1"}}
    ) as run:
        yield run


@pytest.fixture(scope="session")
def key(world):
    """The API key of an account without limits."""

    async def make():
        async with open_tenant(world, unlimited=True, requestsPerMinute=1_000_000) as client:
            return client.key

    return asyncio.run(make())


@pytest.fixture(scope="session")
def management_key(world):
    """The management key of an account that has no other."""

    async def make():
        async with open_tenant(world) as client:
            key = make_key(world, client.account, "Management").plaintext
            await wait_status(client, 200, "/api/v1/management/keys", key=key)
            return key

    return asyncio.run(make())
