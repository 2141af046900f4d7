"""The rate of paid calls, over processes and changes (contract §12.1 to 12.4)."""

import asyncio
import collections

import pytest

from tests.servers.replica import run_api
from tests.servers.tenants import open_tenant, wait_known
from tests.servers.world import wait_for

HEADERS = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")


def rate_of(answer):
    """Limit, remaining and reset; AssertionError where one is no whole number."""
    assert all(answer.headers[name].isdecimal() for name in HEADERS), answer.headers
    return tuple(int(answer.headers[name]) for name in HEADERS)


async def spend(client, base=None):
    """The cheapest call that counts."""
    headers = {"Content-Type": "application/json"}
    return await client.request("POST", client.tasks_path, headers=headers, data=b"{", base=base)


@pytest.mark.full
async def test_two_processes_share_the_rate_exactly(world):
    with run_api(world) as base:
        async with open_tenant(world, requestsPerMinute=40) as client:
            await wait_known(client, base=base)
            answers = await asyncio.gather(
                *(spend(client, base=[None, base][n % 2]) for n in range(100))
            )
            assert collections.Counter(answer.status for answer in answers) == {400: 40, 429: 60}
            passed = [rate_of(answer)[1] for answer in answers if answer.status == 400]
            assert sorted(passed) == list(range(40))


async def test_limit_follows_the_account_within_seconds(world):
    async with open_tenant(world, requestsPerMinute=5) as client:
        assert rate_of(await spend(client)) == (5, 4, rate_of(await spend(client))[2])
        world.patch("gatewayaccount", client.account, {"requestsPerMinute": 1000})

        async def is_new():
            return rate_of(await spend(client))[0] == 1000

        await wait_for(is_new, seconds=5, what="the new limit")
