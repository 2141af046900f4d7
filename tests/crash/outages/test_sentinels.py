"""F5: Sentinels choose another master of Redis under load (I7).

Its counters are rebuilt from the record, whatever writes of the former master it lacks, so that no
limit is passed by more than the creates that were under way.
"""

import asyncio
import random
import secrets
from contextlib import suppress

import pytest

from tests.crash.history import check_money, is_closed
from tests.faults.machine import Stopwatch
from tests.servers.sentinel import SentinelGroup
from tests.servers.tenants import open_tenant
from tests.servers.world import World, check_invariants, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(400)]

WORKERS = 4
"""Creates under way at once."""
PRICE = 180_000
"""Of three seconds, in micro-dollars."""
FITTING = 40
LIMIT = {"micros": FITTING * PRICE + PRICE // 2, "window": "lifetime"}
TRIALS = 10
RECOVERY_SECONDS = 10.0


@pytest.fixture(scope="module")
def group():
    with SentinelGroup() as running:
        yield running


@pytest.fixture(scope="module")
def world(group, control_plane):
    """A gateway whose Redis is behind the Sentinels."""
    env = dict.fromkeys(("api", "operator"), group.settings)
    with World(control_plane, extra_env=env) as running:
        running.redis = group.options
        yield running


WAYS = {
    "killed": (lambda former: former.kill(), lambda former: former.start()),
    # it comes back as a master that takes writes, until a Sentinel demotes it
    "halted": (lambda former: former.stop(), lambda former: former.go_on()),
}


@pytest.mark.parametrize("number", range(share(TRIALS)))
@pytest.mark.parametrize("way", WAYS)
async def test_failover_under_load_passes_no_limit_and_serves_again_at_once(
    world, group, tally, way, number
):
    told = tally("F5", f"master {way}, replaced by Sentinels")
    end, bring_back = WAYS[way]
    async with open_tenant(world, limit=LIMIT, requestsPerMinute=1_000_000) as client:
        await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
        refused, stop = asyncio.Event(), asyncio.Event()

        async def create():
            """Creates until the limit is reached; each create is repeated until it is decided."""
            key = secrets.token_hex(8)
            while not stop.is_set():
                with suppress(ConnectionError):
                    answer = await client.create(idempotency_key=key, duration_seconds=3)
                    if answer.status == 429:
                        refused.set()
                    if answer.status < 500:
                        key = secrets.token_hex(8)
                        continue
                await asyncio.sleep(0.05)

        async with told.trial(client):
            workers = [asyncio.create_task(create()) for _ in range(WORKERS)]
            await asyncio.sleep(random.uniform(0.1, 0.5))
            former = group.find_master()
            end(former)
            try:
                await group.wait_for_another(former)
                with Stopwatch() as timed:
                    await wait_for(lambda: is_decided(client), what="a paid call")
                told.judge("paid calls after s", timed, at_most=RECOVERY_SECONDS)
                bring_back(former)
                await wait_for(refused.is_set, what="the end of the limit", seconds=60)
            finally:
                stop.set()
                await asyncio.gather(*workers)
            ended = await client.wait_terminal(client.history.accepted)
            await check_invariants(client)
            completed = sum(body["status"] == "completed" for body in ended.values())
            told.note("beyond the limit by", completed - FITTING)
            assert FITTING - 1 <= completed <= FITTING + WORKERS, completed
            await wait_for(lambda: is_closed(world, client), what="all finalizers gone")
            await check_money(world, client, told, killed=True)
        await wait_for(group.is_whole, what="two replicas of the new master", seconds=60)
    told.check()


async def is_decided(client):
    """Whether a paid call gets as far as its own faults."""
    return (await client.create(prompt=None)).status == 400
