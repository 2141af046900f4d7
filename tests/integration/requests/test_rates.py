"""The rate of paid calls: what is counted, told and refused (contract §12.1 to 12.4)."""

import asyncio
import collections
import time

import pytest

from tests.servers.replica import run_api
from tests.servers.tenants import (
    open_tenant,
    wait_known,
)
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


async def test_300_calls_pass_and_the_301st_is_the_one_refused(client):
    slots = asyncio.Semaphore(30)

    async def call():
        async with slots:
            return await spend(client)

    passed = await asyncio.gather(*(call() for _ in range(300)))
    assert {answer.status for answer in passed} == {400}
    assert sorted(rate_of(answer)[1] for answer in passed) == list(range(300))
    # all are told the same: when the oldest call leaves the window
    (leaves,) = {rate_of(answer)[2] for answer in passed}
    for refuse in (call, client.create, lambda: client.create(idempotency_key="k")):
        asked = time.time()
        answer = await refuse()
        told = time.time()
        assert answer.status == 429
        assert answer.body == {"error": "Rate limit of 300 requests per minute reached."}
        limit, remaining, reset = rate_of(answer)
        assert (limit, remaining) == (300, 0)
        wait = int(answer.headers["Retry-After"])
        assert 1 <= wait <= 60
        # both are rounded up
        assert asked - 1 < reset - wait < told + 1
        assert reset == leaves
    # what does not count goes on
    assert (await client.request("GET", "/api/v1/me/balance")).status == 200


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


@pytest.mark.full
async def test_call_after_retry_after_passes_and_refused_ones_do_not_prolong_it(throttled):
    told = await throttled.hear()
    assert told["burst"] == [400] * 5
    assert told["refused"] == 429
    # the oldest call of the burst leaves the window a minute after it was made
    assert 60 - told["spent"] <= told["wait"] <= 60
    assert told["early"] == 429
    assert told["after"] == 400
