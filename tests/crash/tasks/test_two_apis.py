"""Two API processes beside each other: what one has done the other knows, or finds out (F14)."""

import asyncio
import collections
from contextlib import asynccontextmanager

import pytest

from tests.crash.history import check_money
from tests.servers.replica import Replica
from tests.servers.tenants import (
    describe,
    describe_key,
    list_objects,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
from tests.servers.world import check_invariants, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(300)]

WAYS = 64
RATE = 300
PLENTY = 10_000
CREATES, ENOUGH_FOR = 200, 50


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
async def test_concurrent_calls_with_one_key_at_two_apis_make_one_task(world, bases, tally):
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


async def ask_until_decided(ask, *given, **options):
    """The answer; a 503, which says that nothing was done, is asked again after, as clients do."""
    async with asyncio.timeout(60):
        while True:
            answer = await ask(*given, **options)
            if answer.status != 503:
                return answer
            await asyncio.sleep(float(answer.headers["Retry-After"]))


async def post_all_ways(client, bases, key):
    """The same create so many times at once, half at each; the one task's id."""
    answers = await asyncio.gather(
        *(
            ask_until_decided(client.create, idempotency_key=key, base=bases[n % 2])
            for n in range(WAYS)
        )
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
            key = f"reuse-{number}"
            made = await ask_until_decided(client.create, idempotency_key=key, base=here)
            assert made.status == 202
            other = await ask_until_decided(
                client.create, idempotency_key=key, prompt="Another", base=there
            )
            assert other.status == 409, other.raw


async def test_a_task_is_found_at_the_other_at_once_and_ends_the_same_at_both(world, bases):
    async with open_account(world, bases) as client:
        ids = []
        for number in range(20):
            here, there = bases[number % 2], bases[(number + 1) % 2]
            created = await ask_until_decided(
                client.create, idempotency_key=f"found-{number}", base=here
            )
            path = f"{client.tasks_path}/{created.body['id']}"
            found = await ask_until_decided(client.request, "GET", path, base=there)
            assert found.status == 200
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


async def wait_pooled(client, key, bases):
    """Waits until both count the key's calls in the pool, by a refused one that spends nothing."""

    async def is_pooled():
        body = client.body(prompt=None)
        asking = (
            client.request("POST", client.tasks_path, key=key, base=base, body=body)
            for base in bases
        )
        answers = await asyncio.gather(*asking)
        limits = {answer.headers.get("X-RateLimit-Limit-RPM") for answer in answers}
        return limits == {str(PLENTY - 1)}

    await wait_for(is_pooled, seconds=5, what="the guardrail")


@pytest.fixture(scope="module")
def price(world):
    """Micro-dollars that the cheapest create reserves."""

    async def find():
        async with open_tenant(world) as client:
            await client.create_surely("price", duration_seconds=3)
            return list_objects(client)[0]["spec"]["request"]["reservedMicros"]

    return asyncio.run(find())


@pytest.mark.parametrize(
    ("edge", "refusal"), [("the balance", 402), ("a key's limit", 429), ("a pool", 429)]
)
async def test_money_is_one_over_both(world, bases, price, edge, refusal):
    """Of 200 creates by two keys at the edge of an amount, as many are taken as it covers (I7)."""
    micros = ENOUGH_FOR * price + price // 2
    spec = {"limit": {"micros": micros, "window": "1h"}}
    funds = {"funds": {"paidMicros": micros}} if edge == "the balance" else {}
    async with open_account(world, bases, requestsPerMinute=PLENTY, **funds) as client:
        made = [describe_key(world, client.account, **(spec if "key" in edge else {}))]
        made += [] if "key" in edge else [describe_key(world, client.account)]
        keys = [key for key, _ in made]
        named = {"accountName": client.account, "displayName": "Pool"}
        rate = {"requestsPerMinute": PLENTY - 1}
        pool = {**named, "keyNames": [key.name for key in keys], **spec, **rate}
        guardrails = [describe("Guardrail", unique("grd"), pool)] if edge == "a pool" else []
        world.apply(*guardrails, *(obj for _, obj in made))
        for base in bases:
            for key in keys:
                await wait_known(client, key.plaintext, base=base)
        if guardrails:
            await wait_pooled(client, keys[0].plaintext, bases)

        async def post(number):
            key, base = keys[number % len(keys)].plaintext, bases[number // 2 % 2]
            # asked again under its name, one that was refused finds the hold that it may have taken
            return await ask_until_decided(
                client.request,
                "POST",
                client.tasks_path,
                headers={"Idempotency-Key": f"money-{number}"},
                key=key,
                base=base,
                body=client.body(duration_seconds=3),
            )

        answers = await asyncio.gather(*(post(number) for number in range(CREATES)))
        counts = collections.Counter(answer.status for answer in answers)
        assert counts == {202: ENOUGH_FOR, refusal: CREATES - ENOUGH_FOR}, counts
        assert len(list_objects(client)) == ENOUGH_FOR
        client.history.accepted += [a.body["id"] for a in answers if a.status == 202]
        ended = await client.wait_terminal(client.history.accepted)
        assert {body["status"] for body in ended.values()} == {"completed"}
        await check_money(world, client)
        assert (await post(CREATES)).status == refusal, "what was held is charged"


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
                if answer.status == 503:
                    await asyncio.sleep(float(answer.headers["Retry-After"]))
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
            found = await ask_until_decided(client.request, "GET", path, base=second.base_url)
            assert found.status == 200
        await client.simulate()
        await check_invariants(client, jobs="exactly one")
        await check_money(world, client, killed=True)
