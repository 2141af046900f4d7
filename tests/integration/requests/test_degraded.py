"""Without the counters, and under maintenance (contract §12.5, §0.9)."""

import asyncio
import time

import pytest
from redis import Redis

from gateway_core.billing.redis_counters import Counters
from tests.faults.machine import Stopwatch
from tests.servers.proxy import Proxy
from tests.servers.replica import run_api
from tests.servers.server import RedisServer
from tests.servers.tenants import list_objects, open_tenant, read_balance, wait_known
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


async def test_unlimited_account_goes_on_and_a_local_counter_bounds_it(world, redis, base):
    async with open_tenant(world, unlimited=True, requestsPerMinute=4) as client:
        await wait_known(client, base=base)
        redis.kill()
        answers = [await client.create(base=base) for _ in range(6)]
        assert [answer.status for answer in answers] == [202] * 4 + [429] * 2
        remaining = [int(a.headers["X-RateLimit-Remaining-RPM"]) for a in answers]
        assert remaining == [3, 2, 1, 0, 0, 0]
        assert {answer.headers["X-RateLimit-Limit-RPM"] for answer in answers} == {"4"}
        assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
        assert abs(int(answers[-1].headers["X-RateLimit-Reset"]) - time.time()) < 62
        assert len(list_objects(client)) == 4
        ended = await client.wait_terminal(client.history.accepted)
        assert {body["status"] for body in ended.values()} == {"completed"}
        redis.start()
        # the shared counter takes over, empty as it is
        answer = await wait_served(client, base)
        assert answer.status in (202, 429)

        async def is_counted():
            answer = await client.create(base=base)
            return answer.headers.get("X-RateLimit-Remaining-RPM") in ("3", "2", "1")

        await wait_for(is_counted, what="the shared counter")


async def test_charges_of_the_outage_are_on_the_balance_afterwards(world, redis, base):
    async with open_tenant(world, unlimited=True) as client:
        await wait_known(client, base=base)
        redis.kill()
        accepted = await client.create(base=base, duration_seconds=3)
        ended = await client.wait_terminal([accepted.body["id"]])
        assert ended[accepted.body["id"]]["status"] == "completed"
        redis.start()

        async def is_charged():
            answer = await client.request("GET", "/api/v1/me/balance", base=base)
            return answer.status == 200 and answer.body["spent_cents_total"] == 18

        await wait_for(is_charged, what="the charge")

        async def is_charged_elsewhere():
            return (await read_balance(client))["spent_cents_total"] == 18

        await wait_for(is_charged_elsewhere, what="the charge at the world's own API")


async def test_redis_that_hangs_is_as_good_as_dead(client, redis, base):
    await wait_known(client, base=base)
    assert (await client.create(base=base)).status == 202
    redis.stop()
    with Stopwatch() as timed:
        answers = await asyncio.gather(*(client.create(base=base) for _ in range(10)))
    # a command has 2 s and is repeated once; one after the other they would take 20 s
    timed.check("refused while Redis hangs", at_most=6)
    for answer in answers:
        check_unavailable(answer)
    redis.go_on()
    assert (await wait_served(client, base)).status == 202


async def test_redis_that_lost_everything_costs_nobody_money(client, redis, base):
    """Emptied at once: what is held and spent is rebuilt before the next hold."""
    await wait_known(client, base=base)
    task = (await client.create(base=base, duration_seconds=3)).body["id"]
    await client.wait_terminal([task])
    redis.restart()
    accepted = await wait_served(client, base, duration_seconds=3)
    assert accepted.status == 202
    balance = (await client.request("GET", "/api/v1/me/balance", base=base)).body
    assert balance["spent_cents_total"] == 18
    assert balance["balance_cents"] == 10_000 - 18 - 18


async def test_maintenance_refuses_creates_and_nothing_else(world, client):
    with run_api(world, GATEWAY_MAINTENANCE="true") as base:
        # not before: the rate at the end is that of a minute, and a process takes long to start
        task = (await client.create(idempotency_key="k")).body["id"]
        await wait_known(client, base=base)
        for answer in (
            await client.create(base=base),
            await client.create(base=base, idempotency_key="k"),
            await client.request("POST", client.tasks_path, base=base, key=None),
            await client.request("POST", client.tasks_path, base=base, data=b"{"),
        ):
            assert answer.status == 503
            assert set(answer.body) == {"error"}
            assert 1 <= int(answer.headers["Retry-After"]) <= 120
            assert answer.headers["X-Request-Id"].startswith("req_")
        paths = [f"{client.tasks_path}/{task}", "/api/v1/me", "/api/v1/me/balance"]
        for path in (*paths, "/healthz", "/readyz", "/openapi.json"):
            assert (await client.request("GET", path, base=base)).status == 200
        # a route that is none, or another method, is told first
        assert (await client.request("PUT", client.tasks_path, base=base)).status == 405
        unrouted = await client.request("POST", "/api/v1/none/reference_to_video", base=base)
        assert unrouted.status == 404
    assert len(list_objects(client)) == 1
    assert (await client.create()).headers["X-RateLimit-Remaining-RPM"] == "298"


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
