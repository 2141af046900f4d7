"""One gateway for the folder, with a schedule short enough to see its end."""

import pytest

from tests.servers.leaks import find_leaks
from tests.servers.receivers import Receiver
from tests.servers.world import World

SCHEDULE = (0, 0.3, 0.3, 0.6)
TIMEOUT = 5.0
"""More than a shared machine halts the receiver, which lives in the process of the tests."""
NETWORKS = {
    # receivers may be on loopback, as in every local run; files are read from no private address
    "GATEWAY_FETCH_ALLOWED_CIDRS": "",
    "GATEWAY_DENIED_CIDRS": "127.0.0.3/32",
}
ENV = {
    **NETWORKS,
    "GATEWAY_CALLBACK_SCHEDULE": ",".join(map(str, SCHEDULE)),
    "GATEWAY_CALLBACK_TIMEOUT_SECONDS": str(TIMEOUT),
}


@pytest.fixture(scope="session")
def world(control_plane):
    """All processes. What the run has written is searched for secrets at its end."""
    extra = {"api": NETWORKS, "operator": ENV, "simulator": {"GATEWAY_SIMULATOR_SECONDS": "0.5"}}
    with World(control_plane, restart=True, extra_env=extra) as running:
        yield running
        leaks = find_leaks(running)
    assert not leaks


@pytest.fixture
async def client(world):
    """A client of the first account."""
    async with world.client() as own:
        yield own


@pytest.fixture
async def receiver():
    """A server that takes callbacks, at every address of the loopback."""
    async with Receiver(host="0.0.0.0") as own:
        yield own
