"""Several owners of the same shards, some of them halted for half a minute and waking up late (F9).

A halted owner is another's before it wakes: its tasks are taken over, ended and closed by the ones
that go on. What it then does must change nothing (I2, I3, I7).
"""

import asyncio
import random
import time
from contextlib import ExitStack

import pytest

from tests.crash.guarantees import UNDER_WAY_SECONDS, Load, make_models
from tests.crash.history import check_money, is_closed
from tests.servers.replica import Replica
from tests.servers.world import check_invariants, wait_for
from tests.shares import share

HALT_SECONDS = 30.0
TOGETHER = 5
"""Owners that are halted at the same time, beside the one that is not."""
HALTS = max(TOGETHER, share(50))
ANYWHERE = "any moment"
MOMENTS = (
    "after-intent",
    "after-submit",
    ANYWHERE,
    "before-intent",
    "after-outputs",
    "after-running",
    "before-outputs",
    "after-terminal",
    "after-archive",
    "after-settle",
    "after-fold",
    "after-finalizer",
)
"""Steps that every task without a callback takes."""


@pytest.fixture
async def client(world, payer):
    """Client of a gateway whose own operator is never halted."""
    assert HALT_SECONDS > UNDER_WAY_SECONDS, "nobody would take over while an owner is halted"
    await payer.simulate({"behaviour": "seconds", "seconds": "1-3"})
    await make_models(world, payer)
    return payer


async def halt_and_resume(owner, moment, begun):
    """Halts the owner where it is to be halted, and lets it go on half a minute later."""
    if moment == ANYWHERE:
        await begun.wait()
        await asyncio.sleep(random.uniform(0, 3))
        owner.halt()
    await wait_for(owner.is_halted, seconds=90, what=f"{owner.name} halted at {moment}")
    since = time.monotonic()
    await asyncio.sleep(HALT_SECONDS)
    assert owner.is_halted()
    owner.resume()
    return time.monotonic() - since


@pytest.mark.timeout(240 + 240 * HALTS // TOGETHER)
async def test_owners_halted_across_a_takeover_double_and_change_nothing(world, client, tally):
    row = tally("F9", "SIGSTOP of an owner for 30 s across a takeover")
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(HALTS)]
    for start in range(0, len(moments), TOGETHER):
        chosen = moments[start : start + TOGETHER]
        async with row.trial(client, count=len(chosen)):
            await run_round(world, client, chosen)
    row.check()


async def run_round(world, client, moments):
    """One halt for each of `moments`, all at the same time, tasks being made meanwhile."""
    load, stop = Load(client, pause=0.5), asyncio.Event()
    with ExitStack() as stack:
        owners = []
        for moment in moments:
            armed = {} if moment == ANYWHERE else {"GATEWAY_FAILPOINTS": f"{moment}:1:stop"}
            owner = Replica(world, "operator", **armed)
            # before it is ready it may be halted already
            owner.start()
            stack.push(owner.__exit__)
            owners.append(owner)
        creating = asyncio.create_task(load.run(stop))
        begun = asyncio.Event()
        halts = [
            asyncio.create_task(halt_and_resume(owner, moment, begun))
            for owner, moment in zip(owners, moments, strict=True)
        ]
        begun.set()
        await asyncio.gather(*halts)
        stop.set()
        await creating
        ended = await client.wait_terminal(load.made, seconds=120)
        load.check_ends(ended)
        await check_invariants(client)
        await wait_for(lambda: is_closed(world, client), what="all finalizers gone", seconds=60)
        await check_money(world, client)
        assert all(owner.is_alive() for owner in owners)


@pytest.mark.timeout(300)
async def test_two_running_owners_double_and_change_nothing(world, client, tally):
    row = tally("F9", "two operators on every shard")
    with Replica(world, "operator"):
        async with row.trial(client):
            load = Load(client)
            await asyncio.gather(*(load.create(number) for number in range(30)))
            ended = await client.wait_terminal(load.made, seconds=90)
            load.check_ends(ended)
            # what may end unknown may not have got as far as a job
            whole = all(body["status"] == "completed" for body in ended.values())
            jobs = "exactly one" if whole else "at most one"
            counts = await check_invariants(client, jobs=jobs)
            assert counts["ended"] == len(client.history.accepted)
            await wait_for(lambda: is_closed(world, client), what="all finalizers gone")
            await check_money(world, client)
    row.check()
