"""F15: 500 calls at once at the edge of an amount, at three APIs: not one too many (I7)."""

import asyncio
import collections
from contextlib import AsyncExitStack, ExitStack

import pytest

from tests.crash.history import check_money
from tests.crash.traffic import ask_until_decided
from tests.servers.replica import Replica
from tests.servers.tenants import (
    describe_account,
    describe_guardrail,
    describe_key,
    list_objects,
    unique,
    wait_known,
)
from tests.servers.world import Client, World, check_invariants
from tests.shares import IS_WHOLE, share

pytestmark = [pytest.mark.timeout(300)]

ROUNDS = 100
CALLS = 500
FITTING = 20
PRICE = 180_000
"""Of three seconds, in micro-dollars."""
AMOUNT = FITTING * PRICE + PRICE // 2
PLENTY = 1_000_000
EDGES = {"balance": 402, "limit of a key": 429, "limit of a guardrail": 429}


@pytest.fixture(scope="module")
def world(control_plane):
    """All processes."""
    with World(control_plane) as running:
        yield running


@pytest.fixture(scope="module")
def bases(world):
    """The world's own API and two more."""
    with ExitStack() as stack:
        others = [stack.enter_context(Replica(world, "api")) for _ in range(2)]
        yield [world.env["GATEWAY_BASE_URL"], *(other.base_url for other in others)]


async def open_edge(world, bases, edge, stack):
    """A client of a new account of which one amount covers 20 calls, known at every API."""
    account = unique("edge")
    limit = {"limit": {"micros": AMOUNT, "window": "1h"}}
    key, key_object = describe_key(world, account, **(limit if edge == "limit of a key" else {}))
    # one that only says when the APIs know the guardrail: a call of it counts against its rate
    rate = {"requestsPerMinute": PLENTY - 1}
    pool = describe_guardrail(
        unique("grd"), account, key, **rate, **(limit if edge == "limit of a guardrail" else {})
    )
    funds = {"paidMicros": AMOUNT if edge == "balance" else 1_000_000_000}
    world.apply(describe_account(account, funds=funds, requestsPerMinute=PLENTY), key_object, pool)
    client = await stack.enter_async_context(
        Client(world, key.plaintext, account, connections=CALLS)
    )
    for base in bases:
        await wait_known(client, base=base, seconds=30)
        await wait_pooled(client, base)
    return client


async def wait_pooled(client, base):
    """Waits until the API counts the key's calls in the guardrail, by calls that are refused."""
    async with asyncio.timeout(30):
        while True:
            answer = await client.create(prompt=None, base=base)
            if answer.headers.get("X-RateLimit-Limit-RPM") == str(PLENTY - 1):
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("number", range(1 + share(ROUNDS) // len(EDGES) if IS_WHOLE else 1))
async def test_calls_at_the_edge_of_an_amount_never_exceed_it(world, bases, tally, edge, number):
    told = tally("F15", f"{CALLS} calls at once at the edge of a {edge}, three APIs")
    async with AsyncExitStack() as stack:
        client = await open_edge(world, bases, edge, stack)
        async with told.trial(client):
            await client.simulate({"behaviour": "seconds", "seconds": "0.2"})
            # asked again under its key, a call that got a 503 finds what it may have reserved
            answers = await asyncio.gather(
                *(
                    ask_until_decided(
                        client.create,
                        idempotency_key=f"edge-{n}",
                        base=bases[n % len(bases)],
                        duration_seconds=3,
                    )
                    for n in range(CALLS)
                )
            )
            counts = collections.Counter(answer.status for answer in answers)
            assert counts == {202: FITTING, EDGES[edge]: CALLS - FITTING}, counts
            objects = list_objects(client)
            assert len(objects) == FITTING
            reserved = [obj["spec"]["request"]["reservedMicros"] for obj in objects]
            assert set(reserved) == {PRICE}
            ended = await client.wait_terminal(client.history.accepted)
            assert {body["status"] for body in ended.values()} == {"completed"}
            await check_invariants(client, jobs="exactly one")
            await check_money(world, client, told)
            assert (await client.create(duration_seconds=3)).status == EDGES[edge], "charged"
    told.check()
