"""Two API processes on one port, as the local run has them (`GATEWAY_REUSE_PORT`)."""

import asyncio
import collections

import aiohttp
import pytest

from gateway_cli.inspection.metrics import parse_metrics
from tests.servers.replica import Replica
from tests.servers.tenants import open_tenant, wait_known


@pytest.fixture
def pair(world):
    """The two processes."""
    shared = {"GATEWAY_REUSE_PORT": "true", "GATEWAY_REPLICAS": "2"}
    with Replica(world, "api", **shared) as first:
        second = Replica(world, "api", GATEWAY_API_PORT=str(first.port), **shared)
        with second:
            yield first, second


async def count_calls(replica):
    """Count the paid calls that reached a process."""
    async with aiohttp.request("GET", f"{replica.health_url}/metrics") as answer:
        samples = parse_metrics(await answer.text())
    return sum(sample.value for sample in samples["gateway_admissions_total"])


async def test_two_processes_share_port_and_limit_and_one_survives_the_other(world, pair):
    base = pair[0].base_url
    async with open_tenant(world, requestsPerMinute=20) as client:
        # each on a connection of its own, and so at both processes
        await asyncio.gather(*(wait_known(client, base=base) for _ in range(20)))
        body = {"headers": {"Content-Type": "application/json"}, "data": b"{", "base": base}
        calls = (client.request("POST", client.tasks_path, **body) for _ in range(60))
        answers = await asyncio.gather(*calls)
        assert collections.Counter(answer.status for answer in answers) == {400: 20, 429: 40}
        counts = await asyncio.gather(*map(count_calls, pair))
        assert sum(counts) == 60
        assert min(counts) > 0
        for killed in pair:
            killed.kill()
            await check_served(client, base)
            killed.start()
            # a starting process takes no connection before it can answer
            while not await asyncio.to_thread(killed.is_ready):
                assert killed.is_alive()
                await check_served(client, base)


async def check_served(client, base):
    """Check that calls on new connections are answered, whichever process they reach."""
    async with client.world.client(client.key, client.account) as other:
        calls = (other.request("GET", "/api/v1/me", base=base) for _ in range(20))
        answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {200}
