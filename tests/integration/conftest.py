"""One gateway for each worker; each test has accounts of its own on it."""

import asyncio
import base64
from urllib.parse import quote

import pytest

from tests.servers.forward_proxy import ForwardProxy
from tests.servers.leaks import find_leaks
from tests.servers.tenants import open_tenant
from tests.servers.world import World

PROXY_PASSWORD = "p@ss wörd"


@pytest.fixture(scope="session")
def forward_proxy():
    """The proxy for all that is not on loopback."""
    with ForwardProxy(user=f"ann:{PROXY_PASSWORD}") as running:
        yield running


@pytest.fixture(scope="session")
def world(control_plane, forward_proxy):
    """All processes. What the run has written is searched for secrets at its end."""
    # every test registers clients and signs in from the same address
    api = {
        "GATEWAY_OAUTH_REGISTRATIONS_PER_MINUTE": "10000",
        "GATEWAY_OAUTH_REGISTRATIONS_PER_DAY": "100000",
        "GATEWAY_SIGN_INS_PER_MINUTE": "10000",
    }
    address = forward_proxy.url.replace("//", f"//ann:{quote(PROXY_PASSWORD)}@")
    proxied = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": ""}
    env = {"api": api | proxied, "operator": proxied, "mcp": proxied}
    with World(control_plane, restart=True, extra_env=env, mcp=True) as running:
        credentials = base64.b64encode(f"ann:{PROXY_PASSWORD}".encode()).decode()
        forms = (PROXY_PASSWORD, quote(PROXY_PASSWORD), credentials)
        running.secrets |= {f"proxy_{form}" for form in forms}
        yield running
        leaks = find_leaks(running)
    assert not leaks


@pytest.fixture
async def client(world):
    """A client of an account of its own."""
    async with open_tenant(world) as own:
        yield own


@pytest.fixture(scope="session")
def shared_account(world):
    """Name and key of an account without limits, for tests that look at single answers only."""

    async def run():
        async with open_tenant(world, unlimited=True, requestsPerMinute=1_000_000) as client:
            return client.account, client.key

    return asyncio.run(run())


@pytest.fixture
async def shared(world, shared_account):
    """A client of the account without limits."""
    account, key = shared_account
    async with world.client(key, account) as client:
        yield client


@pytest.fixture
async def other(world):
    """A client of another account."""
    async with open_tenant(world) as own:
        yield own


@pytest.fixture
async def simulate(world):
    """Tells the simulated provider to misbehave, until the test is over."""
    async with world.client() as admin:
        yield admin.simulate
        await admin.simulate()


@pytest.fixture(scope="session")
def ended(world):
    """A task that has completed: its account's client key, account, id and body."""

    async def run():
        async with open_tenant(world) as client:
            task = (await client.create(duration_seconds=3)).body["id"]
            body = (await client.wait_terminal([task]))[task]
            assert body["status"] == "completed", body
            return client.key, client.account, task, body

    return asyncio.run(run())
