"""Two API processes beside each other: what one has done the other knows, or finds out (F14)."""

import asyncio
import collections
from contextlib import asynccontextmanager

import pytest

from tests.crash.traffic import ask_until_decided
from tests.servers.replica import Replica
from tests.servers.tenants import (
    list_objects,
    make_key,
    open_tenant,
    wait_known,
    wait_status,
)
from tests.servers.world import check_invariants, wait_for
from tests.shares import share

pytestmark = [pytest.mark.timeout(300)]

WAYS = 64


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


async def test_reused_key_is_refused_by_the_other_api_at_once(world, bases):
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


async def test_task_of_one_api_is_read_at_the_other_until_its_end(world, bases):
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


async def test_new_and_revoked_keys_are_known_at_both_apis(world, bases):
    async with open_account(world, bases) as client:
        key = make_key(world, client.account)
        for base in bases:
            await wait_status(client, 200, key=key.plaintext, base=base)
        world.patch("gatewaykey", key.name, {"disabled": True})
        for base in bases:
            await wait_status(client, 401, key=key.plaintext, base=base)
