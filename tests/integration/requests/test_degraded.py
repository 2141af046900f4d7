"""Calls while the counters are away (contract §12.5)."""

import asyncio

import pytest
from redis import Redis

from gateway_core.billing.redis_counters import Counters
from tests.faults.machine import Stopwatch
from tests.servers.proxy import Proxy
from tests.servers.replica import run_api
from tests.servers.server import RedisServer
from tests.servers.tenants import list_objects, wait_known
from tests.servers.world import wait_for


@pytest.fixture(scope="module")
def lonely(world):
    """An API process whose Redis is its own, to be killed."""
    with RedisServer() as redis, run_api(world, GATEWAY_REDIS_URL=redis.url) as base:
        yield redis, base


@pytest.fixture
async def redis(lonely):
    """The Redis of that process; it runs again after the test."""
    server = lonely[0]
    yield server
    server.restart()


@pytest.fixture
def base(lonely):
    return lonely[1]


def check_unavailable(answer):
    assert answer.status == 503, answer.raw
    assert set(answer.body) == {"error"}
    assert answer.headers["Retry-After"] == "5"


async def test_limited_account_is_refused_and_served_again_when_redis_is_back(client, redis, base):
    await wait_known(client, base=base)
    first = await client.create(base=base, idempotency_key="before")
    assert first.status == 202
    redis.kill()
    check_unavailable(await client.create(base=base, idempotency_key="away"))
    check_unavailable(await client.create(base=base))
    check_unavailable(await client.create(base=base, idempotency_key="before"))
    # what needs no counters goes on
    path = f"{client.tasks_path}/{first.body['id']}"
    assert (await client.request("GET", path, base=base)).status == 200
    assert (await client.request("GET", "/api/v1/me", base=base)).status == 200
    check_unavailable(await client.request("GET", "/api/v1/me/balance", base=base))
    assert len(list_objects(client)) == 1

    redis.start()
    again = await wait_served(client, base, idempotency_key="away")
    assert again.status == 202
    assert "task_replayed" not in again.body
    # the hold of before is known again, from the record
    balance = (await client.request("GET", "/api/v1/me/balance", base=base)).body
    assert balance["paid_balance_cents"] + balance["spent_cents_total"] == 10_000
    assert balance["balance_cents"] <= 9_940
    replay = await client.create(base=base, idempotency_key="before")
    assert replay.body == {**first.body, "task_replayed": True}


async def wait_served(client, base, **call):
    """The first answer that is not 503."""

    async def ask():
        answer = await client.create(base=base, **call)
        return answer if answer.status != 503 else None

    return await wait_for(ask, seconds=20, what="the end of the outage")


@pytest.mark.full
async def test_paid_calls_go_on_within_seconds_of_a_failover_and_are_charged_once(world, client):
    """The master is demoted, the name follows it late, and pooled connections stay open."""
    chat = {"model": "sim-chat", "messages": [{"role": "user", "content": "Hi"}]}
    paid = 0

    async def pay(base):
        nonlocal paid
        answer = await client.request("POST", "/v1/chat/completions", body=chat, base=base)
        assert answer.status in (200, 503), answer.raw
        paid += answer.status == 200
        return answer.status == 200

    async def read_charged(server):
        counters = Counters(server.url, namespace=world.config.namespace)
        try:
            return (await counters.read_spending(client.account, "")).charged
        finally:
            await counters.close()

    with RedisServer() as former, RedisServer() as promoted, Proxy(former.port) as name:
        url = f"redis://127.0.0.1:{name.port}/0"
        with run_api(world, GATEWAY_REDIS_URL=url) as base:
            await wait_known(client, base=base)
            await wait_for(lambda: pay(base), what="the first paid call")
            price = await wait_for(lambda: read_charged(former), what="its charge")
            results = await asyncio.gather(*(pay(base) for _ in range(16)))
            assert all(results)
            with Redis(port=former.port) as server:
                server.replicaof("127.0.0.1", str(promoted.port))
            assert not await pay(base)
            name.point_to(promoted.port)
            with Stopwatch() as timed:
                await wait_for(lambda: pay(base), what="a paid call on the new master")
            timed.check("recovered after a failover", at_most=10)
            assert all(await asyncio.gather(*(pay(base) for _ in range(16))))

            async def is_exact():
                return await read_charged(promoted) == paid * price

            await wait_for(is_exact, what="each paid call's charge, once")
            assert price > 0
