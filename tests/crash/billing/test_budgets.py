"""Redis lost under load, with limits of keys and pools: the figures come back as recorded.

I7: what is charged is what completed, no hold outlives its task, and no limit is passed by more
than the creates that were under way when the counters were lost (F5).
"""

import asyncio
import collections
import random
import secrets
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from redis import Redis

from gateway_core.api.limits import subject_of_guardrail, subject_of_key
from gateway_core.billing.counters import Budget
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger, rebuild_ledger
from gateway_core.billing.windows import Buckets, sum_window
from gateway_core.redis.link import CountersStale
from gateway_core.storage.directory import DirectoryStore
from tests.crash.history import check_money, is_closed, open_counters
from tests.servers.tenants import (
    describe_account,
    describe_guardrail,
    describe_key,
    open_tenant,
    unique,
    wait_known,
)
from tests.servers.world import check_invariants, wait_for
from tests.shares import IS_WHOLE, share

pytestmark = [pytest.mark.timeout(300)]

WINDOWS = ("1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime")
WORKERS = 4
"""Creates under way at once."""
PRICE = 180_000
"""Of three seconds, in micro-dollars."""
FITTING = 25
TRIALS = 10
AWAY_SECONDS = 60 if IS_WHOLE else 5
RATE = 60
MUCH = {"limit": {"micros": 1_000_000_000, "window": "1d"}}


@pytest.fixture
async def shop(world):
    """A client of an account, its two keys in a pool for so many runs, and their subjects."""
    account, pool = unique("acct"), unique("grd")
    made = [describe_key(world, account, **MUCH) for _ in range(2)]
    limit = {"micros": FITTING * PRICE + PRICE // 2, "window": "lifetime"}
    keys = [key for key, _ in made]
    world.apply(
        describe_account(account, requestsPerMinute=1_000_000),
        describe_guardrail(pool, account, *keys, limit=limit),
        *(obj for _, obj in made),
    )
    async with world.client(keys[0].plaintext, account) as client:
        for key in keys:
            await wait_known(client, key=key.plaintext)
        subjects = [*(subject_of_key(key.name) for key in keys), subject_of_guardrail(pool)]
        yield client, [key.plaintext for key in keys], subjects


async def restart(world, client):
    """Killed and back at once, empty."""
    await asyncio.to_thread(world.run.kill, "redis")
    await asyncio.to_thread(world.run.restart, "redis")


async def flush(world, client):
    """FLUSHALL: the same process, empty."""
    with Redis(port=world.config.ports.redis) as direct:
        direct.flushall()


async def evict(world, client):
    """An eviction takes a pool's buckets, and nothing else."""
    with Redis(port=world.config.ports.redis) as direct:

        def find():
            return list(direct.scan_iter(f"gw:{{*/{client.account}}}:spent:*:guardrail/*"))

        direct.delete(*await wait_for(find, what="a charge in the pool"))


async def take_away(world, client):
    """Away for a minute, by default for five seconds; no create is taken meanwhile."""
    await asyncio.to_thread(world.run.kill, "redis")
    gone = time.monotonic()
    await asyncio.sleep(AWAY_SECONDS)
    back = time.monotonic()
    await asyncio.to_thread(world.run.restart, "redis")
    taken = [at for at, until in client.taken if gone < at and until < back]
    assert taken == [], "I7: a create was taken without a reservation"


async def fail_over(world, client):
    """A replica takes over that has not seen the last half second."""
    with Redis(port=world.config.ports.redis) as direct:
        direct.save()
    await asyncio.sleep(0.5)
    await asyncio.to_thread(world.run.kill, "redis")
    # it reads what lies in its folder
    await asyncio.to_thread(world.run.restart, "redis")
    world.config.directory.joinpath("redis", "dump.rdb").unlink()


LOSSES = {
    "killed": restart,
    "FLUSHALL": flush,
    "away for a while": take_away,
    "failed over to a stale replica": fail_over,
    "robbed of a key": evict,
}


@pytest.mark.parametrize("number", range(share(TRIALS)))
@pytest.mark.parametrize("loss", LOSSES)
async def test_redis_lost_under_load_gives_limits_back_as_recorded(
    world, shop, tally, loss, number
):
    client, keys, subjects = shop
    told = tally("F5", f"Redis {loss}, with limits")
    await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
    refused, stop, client.taken = asyncio.Event(), asyncio.Event(), []

    async def create(number):
        """Creates with one key and then the other, until the pool is spent."""
        while not stop.is_set():
            number += 1
            answer = await send(client, keys[number % 2])
            if answer.status == 429:
                refused.set()

    workers = [asyncio.create_task(create(number)) for number in range(WORKERS)]
    async with told.trial(client):
        await asyncio.sleep(random.uniform(0.2, 0.8))  # the moment is any
        try:
            await LOSSES[loss](world, client)
            await wait_for(lambda: served(client, keys[0]), what="service after the loss")
            await wait_for(refused.is_set, what="the end of the pool", seconds=60)
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
        await check_record(world, client, subjects)
    told.check()


@pytest.mark.parametrize("number", range(share(TRIALS)))
@pytest.mark.parametrize("loss", ["killed", "FLUSHALL"])
async def test_rate_is_at_most_doubled_when_redis_is_lost(world, tally, loss, number):
    """The minute's window begins anew, so that no more than twice the rate passes in it."""
    told = tally("F5", f"Redis {loss}, with a rate")
    async with open_tenant(world, requestsPerMinute=RATE) as client, told.trial(client):
        counts = collections.Counter()
        for is_last in (False, True):
            # refused for its body, and counted all the same
            answers = await asyncio.gather(*(client.create(prompt=None) for _ in range(2 * RATE)))
            counts += collections.Counter(answer.status for answer in answers)
            if not is_last:
                assert counts[400] <= RATE, counts
                await LOSSES[loss](world, client)
                await wait_for(lambda: decided(client), what="service after the loss")
                counts[400] += 1
        told.note("passed of a rate of 60", counts[400])
        assert RATE <= counts[400] <= 2 * RATE + 1, counts
        assert counts[429] >= RATE
    told.check()


async def decided(client):
    """Whether a call is counted again, whether it passes or not."""
    return (await client.create(prompt=None)).status in (400, 429)


async def send(client, key):
    """One create, repeated until it is decided."""
    body = client.body(duration_seconds=3)
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    deadline, answer = time.monotonic() + AWAY_SECONDS + 60, None
    while time.monotonic() < deadline:
        begun = time.monotonic()
        with suppress(ConnectionError):
            answer = await client.request(
                "POST", client.tasks_path, body=body, key=key, headers=headers
            )
            if answer.status < 500:
                break
        await asyncio.sleep(0.1)
    assert answer is not None
    assert answer.status in (202, 429), answer
    if answer.status == 202:
        client.history.accepted.append(answer.body["id"])
        client.taken.append((begun, time.monotonic()))
    return answer


async def served(client, key):
    """Whether a paid call gets as far as its own faults."""
    answer = await client.request("POST", client.tasks_path, body=client.body(prompt=None), key=key)
    return answer.status == 400


async def check_record(world, client, subjects):
    """Every window of each subject is what the record comes to, before and after a loss."""
    account, now = client.account, datetime.now(UTC)
    asked = [Budget(name, None, window) for name in subjects for window in WINDOWS]
    store = DirectoryStore(world.config.store_directory)
    backlog = JournalStore(store)
    async with world.kube() as kube, open_counters(world) as counters:

        async def read():
            try:
                states = await counters.read_budgets(account, asked)
            except CountersStale:
                await rebuild_ledger(kube, backlog, counters, account)
                return None
            return [(state.used, state.held) for state in states]

        before = await wait_for(read, what="figures")
        ledger = await read_ledger(kube, backlog, account)
        assert ledger.holds == {}
        spent = [ledger.spent.get(budget.subject, Buckets()) for budget in asked]
        assert before == [
            (sum_window(buckets, budget.window, now), 0)
            for buckets, budget in zip(spent, asked, strict=True)
        ]
        await flush(world, client)
        assert await wait_for(read, what="figures rebuilt") == before
    store.close()
