"""One gateway for the crash tests; each test leaves it whole."""

import pytest

from tests.servers.tenants import open_tenant
from tests.servers.world import World

FUNDS = {"paidMicros": 1_000_000_000_000}
LIMIT = {"micros": 1_000_000_000_000, "window": "7d"}


@pytest.fixture(scope="module")
def world():
    """All processes, none restarted of itself."""
    with World() as running:
        yield running


@pytest.fixture(scope="module")
def unattended_world():
    """A gateway whose own operator has been ended: tests bring theirs."""
    with World() as running:
        running.run.kill("operator")
        yield running


@pytest.fixture
async def payer(world):
    """A client of an account of its own, with money and a rate for any load.

    Its key has a limit, and so has its guardrail, which no load comes up to.
    """
    async with open_tenant(world, funds=FUNDS, limit=LIMIT, requestsPerMinute=1_000_000) as client:
        yield client
