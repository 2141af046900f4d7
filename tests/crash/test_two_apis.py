"""Two API processes beside each other: what one has done the other knows, or finds out (F14)."""

import asyncio
import collections
from contextlib import asynccontextmanager
from functools import partial

import pytest

from tests.crash.history import check_money
from tests.crash.shares import share
from tests.servers.replica import Replica
from tests.servers.tenants import (
    describe_guardrail,
    describe_key,
    list_objects,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import World, check_invariants, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WAYS = 64
RATE = 300
POOL_RATE = 77_777
FITTING = 50
"""Creates that the money covers, of 200."""


@pytest.fixture(scope="module")
def world():
    with World() as running:
        yield running


@pytest.fixture(scope="module")
def second(world):
    """The other API process."""
    with Replica(world, "api") as replica:
        yield replica


@pytest.fixture
def bases(world, second):
    """Where the two are."""
    return world.env["GATEWAY_BASE_URL"], second.base_url


@asynccontextmanager
async def open_account(world, bases, **spec):
    """A client of a new account, once both know its key."""
    async with open_tenant(world, **spec) as client:
        for base in bases:
            await wait_known(client, base=base)
        yield client


@pytest.mark.timeout(120 + 6 * share(200))
async def test_one_key_at_both_at_once_is_one_task(world, bases, tally):
    row = tally("F14", f"same Idempotency-Key {WAYS} ways at two APIs")
    keys = share(200)
    async with (
        open_account(world, bases, unlimited=True, requestsPerMinute=1_000_000) as client,
        row.trial(client, count=keys * WAYS),
    ):
        ids = [await post_all_ways(client, bases, f"same-{n}") for n in range(keys)]
        assert len(set(ids)) == keys
        objects = list_objects(client)
        assert len(objects) == keys
        await client.wait_terminal(ids, seconds=120)
        await check_invariants(client, jobs="exactly one")
    row.check()


async def post_all_ways(client, bases, key):
    """The same create so many times at once, half at each; the one task's id."""
    answers = await asyncio.gather(
        *(client.create(idempotency_key=key, base=bases[n % 2]) for n in range(WAYS))
    )
    statuses = collections.Counter(answer.status for answer in answers)
    assert statuses == {202: WAYS}, statuses
    ids = {answer.body["id"] for answer in answers}
    assert len(ids) == 1, ids
    replays = sum(answer.body.get("task_replayed") is True for answer in answers)
    assert replays == WAYS - 1
    return ids.pop()


async def test_a_reused_key_is_refused_by_the_other_at_once(world, bases):
    async with open_account(world, bases) as client:
        for number in range(10):
            here, there = bases[number % 2], bases[(number + 1) % 2]
            made = await client.create(idempotency_key=f"reuse-{number}", base=here)
            assert made.status == 202
            other = await client.create(
                idempotency_key=f"reuse-{number}", prompt="Another", base=there
            )
            assert other.status == 409, other.raw


async def test_a_task_is_found_at_the_other_at_once_and_ends_the_same_at_both(world, bases):
    async with open_account(world, bases) as client:
        ids = []
        for number in range(20):
            here, there = bases[number % 2], bases[(number + 1) % 2]
            created = await client.create(base=here)
            path = f"{client.tasks_path}/{created.body['id']}"
            assert (await client.request("GET", path, base=there)).status == 200
            ids.append(created.body["id"])
        ended = await client.wait_terminal(ids)

        async def same_at_both():
            paths = [f"{client.tasks_path}/{task_id}" for task_id in ids]
            told = [await client.request("GET", path, base=bases[1]) for path in paths]
            return [answer.body for answer in told] == [ended[task_id] for task_id in ids]

        await wait_for(same_at_both, what="the same end at both", seconds=5)


async def test_keys_that_are_made_and_revoked_are_so_at_both(world, bases):
    async with open_account(world, bases) as client:
        key = make_key(world, client.account)
        for base in bases:
            await wait_status(client, 200, key=key.plaintext, base=base)
        world.patch("gatewaykey", key.name, {"disabled": True})
        for base in bases:
            await wait_status(client, 401, key=key.plaintext, base=base)


async def test_an_accounts_rate_is_one_over_both(world, bases):
    async with open_account(world, bases, unlimited=True, requestsPerMinute=RATE) as client:

        async def post(number):
            # refused for its body, and counted all the same
            return await client.create(prompt=None, base=bases[number % 2])

        answers = await asyncio.gather(*(post(number) for number in range(RATE + 40)))
        counts = collections.Counter(answer.status for answer in answers)
        assert counts == {400: RATE, 429: 40}, counts
        left = sorted(
            int(answer.headers["X-RateLimit-Remaining-RPM"])
            for answer in answers
            if answer.status == 400
        )
        assert left == list(range(RATE))


@pytest.mark.parametrize("bound", ["balance", "key", "pool"])
async def test_of_200_creates_as_many_are_taken_as_the_money_covers(world, bases, bound):
    """At two processes at once, by the balance, a key's limit, or the pool of two keys (I7)."""
    price = await find_price(world, bases)
    enough = FITTING * price + price // 2
    spec = {"requestsPerMinute": 1_000_000, "funds": {"paidMicros": 1000 * price}}
    limit = {"limit": {"micros": enough, "window": "weekly"}}
    if bound == "balance":
        spec["funds"] = {"paidMicros": enough}
    async with open_account(world, bases, **spec) as client:
        keys = [client.key]
        if bound != "balance":
            made = [
                describe_key(world, client.account, **(limit if bound == "key" else {}))
                for _ in range(2 if bound == "pool" else 1)
            ]
            objects = [obj for _, obj in made]
            if bound == "pool":
                owners, pool = [key for key, _ in made], {**limit, "requestsPerMinute": POOL_RATE}
                objects.append(describe_guardrail(unique("grd"), client.account, *owners, **pool))
            world.apply(*objects)
            keys = [key.plaintext for key, _ in made]
            for key in keys:
                for base in bases:
                    await wait_known(client, key=key, base=base)
            if bound == "pool":
                await wait_pooled(client, bases, keys)
        body = client.body(duration_seconds=3)

        async def post(number):
            key, base = keys[number // 2 % len(keys)], bases[number % 2]
            return await client.request("POST", client.tasks_path, body=body, key=key, base=base)

        answers = await asyncio.gather(*(post(number) for number in range(200)))
        counts = collections.Counter(answer.status for answer in answers)
        assert counts == {202: FITTING, 402 if bound == "balance" else 429: 200 - FITTING}, counts
        for answer in answers:
            if answer.status == 429:
                assert answer.headers["x-should-retry"] == "false"
                assert not {"Retry-After", "X-RateLimit-Limit-RPM"} & set(answer.headers)
        client.history.accepted += [a.body["id"] for a in answers if a.status == 202]
        ended = await client.wait_terminal(client.history.accepted)
        assert {body["status"] for body in ended.values()} == {"completed"}
        await check_money(world, client)
        refused = await post(0)
        assert refused.status == (402 if bound == "balance" else 429), refused.raw


async def find_price(world, bases):
    """What a create of three seconds reserves, and then costs."""
    async with open_account(world, bases) as probe:
        await probe.create(duration_seconds=3, base=bases[0])
        return list_objects(probe)[0]["spec"]["request"]["reservedMicros"]


async def wait_pooled(client, bases, keys):
    """Waits until both know that the guardrail holds for all keys, by the rate it has."""

    async def is_known(key, base):
        body = client.body(prompt=None)
        answer = await client.request("POST", client.tasks_path, body=body, key=key, base=base)
        return answer.headers.get("X-RateLimit-Limit-RPM") == str(POOL_RATE)

    for key in keys:
        for base in bases:
            await wait_for(partial(is_known, key, base), what="the guardrail")


async def test_a_killed_api_loses_nothing_and_the_other_goes_on(world, second):
    async with world.client() as client:
        await client.simulate({"behaviour": "seconds", "seconds": "1-3"})
        bases = [second.base_url, world.env["GATEWAY_BASE_URL"]]

        async def create(number):
            key = unique("killed")
            for attempt in range(40):
                try:
                    answer = await client.create(
                        idempotency_key=key, base=bases[(number + attempt) % 2]
                    )
                except ConnectionError:
                    continue
                assert answer.status == 202, answer.raw
                return answer.body["id"]
            raise AssertionError("no API has taken it")

        creations = [asyncio.create_task(create(number)) for number in range(20)]
        await asyncio.wait(creations, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(second.kill)
        creations += [asyncio.create_task(create(number)) for number in range(20)]
        ids = await asyncio.gather(*creations)
        await asyncio.to_thread(second.start)
        await asyncio.to_thread(second.wait_ready)
        for task_id in ids:
            path = f"{client.tasks_path}/{task_id}"
            assert (await client.request("GET", path, base=second.base_url)).status == 200
        await client.simulate()
        await check_invariants(client, jobs="exactly one")
        await check_money(world, client)
