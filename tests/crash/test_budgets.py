"""Redis lost under load, with limits of keys and pools: the figures come back as recorded.

I7: what is charged is what completed, no hold outlives its task, and no limit is passed by more
than the creates that were under way when the counters were lost.
"""

import asyncio
import random
import secrets
from datetime import UTC, datetime

import pytest
from redis import Redis

from gateway_core.adapters.objectstore.directory import DirectoryStore
from gateway_core.contract.limits import subject_of_guardrail, subject_of_key
from gateway_core.domain.windows import Buckets, sum_window
from gateway_core.ports.counters import Budget, CountersStale
from gateway_core.usecases.backlog import Backlog
from gateway_core.usecases.ledgers import read_ledger, rebuild_ledger
from tests.bench.stage import connect_records
from tests.crash.history import check_money, is_closed, open_counters
from tests.servers.tenants import (
    describe_account,
    describe_guardrail,
    describe_key,
    unique,
    wait_known,
)
from tests.servers.world import check_invariants, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WINDOWS = ("1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime")
WORKERS = 4
"""Creates under way at once."""
PRICE = 180_000
"""Of three seconds, in micro-dollars."""
FITTING = 25
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


async def test_redis_lost_under_load_gives_limits_back_as_recorded(world, shop, tally):
    client, keys, subjects = shop
    told = tally("F4", "Redis killed, emptied or robbed, with limits")
    await client.simulate({"behaviour": "seconds", "seconds": "0.3-1"})
    refused, stop = asyncio.Event(), asyncio.Event()

    async def create(number):
        """Creates with one key and then the other, until the pool is spent."""
        while not stop.is_set():
            number += 1
            answer = await send(client, keys[number % 2])
            if answer is not None and answer.status == 429:
                refused.set()

    workers = [asyncio.create_task(create(number)) for number in range(WORKERS)]
    losses = [lose_process, lose_all, lose_a_part]
    async with told.trial(client, count=len(losses)):
        for lose in losses:
            await asyncio.sleep(random.uniform(0.2, 0.8))  # the moment is any
            await lose(world, client)
            await wait_for(lambda: served(client, keys[0]), what="service after the loss")
        await wait_for(refused.is_set, what="the end of the pool", seconds=60)
        stop.set()
        await asyncio.gather(*workers)
        ended = await client.wait_terminal(client.history.accepted)
        await check_invariants(client)
        completed = sum(body["status"] == "completed" for body in ended.values())
        assert FITTING - 1 <= completed <= FITTING + len(losses) * WORKERS, completed
        await wait_for(lambda: is_closed(world, client), what="all finalizers gone")
        await check_money(world, client)
        await check_record(world, client, subjects)
    told.check()


async def send(client, key):
    """One create; None where nobody answered."""
    body = client.body(duration_seconds=3)
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    for _ in range(100):
        try:
            answer = await client.request(
                "POST", client.tasks_path, body=body, key=key, headers=headers
            )
        except ConnectionError:
            answer = None
        if answer is not None and answer.status < 500:
            break
        await asyncio.sleep(0.1)
    assert answer is not None
    assert answer.status in (202, 429), answer
    if answer.status == 202:
        client.history.accepted.append(answer.body["id"])
    return answer


async def served(client, key):
    """Whether a paid call gets as far as its own faults."""
    answer = await client.request("POST", client.tasks_path, body=client.body(prompt=None), key=key)
    return answer.status == 400


async def lose_process(world, client):
    await asyncio.to_thread(world.run.kill, "redis")
    await asyncio.to_thread(world.run.restart, "redis")


async def lose_all(world, client):
    with Redis(port=world.config.ports.redis) as direct:
        direct.flushall()


async def lose_a_part(world, client):
    """An eviction takes a pool's buckets, and nothing else."""
    with Redis(port=world.config.ports.redis) as direct:

        def find():
            return list(direct.scan_iter(f"gw:{{*/{client.account}}}:spent:*:guardrail/*"))

        direct.delete(*await wait_for(find, what="a charge in the pool"))


async def check_record(world, client, subjects):
    """Every window of each subject is what the record comes to, before and after a loss."""
    account, now = client.account, datetime.now(UTC)
    asked = [Budget(name, None, window) for name in subjects for window in WINDOWS]
    store = DirectoryStore(world.config.store_directory)
    backlog = Backlog(store)
    async with connect_records(world) as records, open_counters(world) as counters:

        async def read():
            try:
                states = await counters.read_budgets(account, asked)
            except CountersStale:
                await rebuild_ledger(records, backlog, counters, account)
                return None
            return [(state.used, state.held) for state in states]

        before = await wait_for(read, what="figures")
        ledger = await read_ledger(records, backlog, account)
        assert ledger.holds == {}
        spent = [ledger.spent.get(budget.subject, Buckets()) for budget in asked]
        assert before == [
            (sum_window(buckets, budget.window, now), 0)
            for buckets, budget in zip(spent, asked, strict=True)
        ]
        await lose_all(world, client)
        assert await wait_for(read, what="figures rebuilt") == before
    store.close()
