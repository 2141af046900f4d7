"""Several processes with leases on one real Redis, at random: limits, sums and what is left."""

import asyncio
import random

import pytest
from redis import Redis

from gateway_core.billing.redis_counters import Counters
from tests.ports.counters_stores import name_account
from tests.servers.server import RedisServer
from tests.servers.world import wait_for
from tests.unit.billing.lease_harness import LeaseBench, Limits

pytestmark = pytest.mark.full
MOST_SECONDS = 40.0
CASES = {
    "money of keys and guardrail": Limits(key=150_000, guardrail=220_000),
    "money of the account": Limits(funds=200_000),
    "calls of the account": Limits(account_calls=1600),
    "calls of keys": Limits(key_calls=1300),
}


async def call_at_random(bench: LeaseBench, choice: random.Random) -> None:
    """Bursts and pauses of calls at all processes."""
    while True:
        for process in list(bench.processes):
            if choice.random() < 0.6:
                for _ in range(choice.randrange(12)):
                    process.start_call(seconds=choice.choice([0.0, 0.01, 0.3]))
        await asyncio.sleep(choice.choice([0.0, 0.005, 0.02, 0.15]))


async def check_end(bench: LeaseBench) -> None:
    """What is left when all calls have ended is what the journal says, and no hold."""
    for process in bench.processes:
        await asyncio.gather(*process.calls)
        await process.live.close()
    await wait_for(
        lambda: not any(len(process.live) for process in bench.processes),
        what="all calls counted",
        seconds=MOST_SECONDS,
    )
    recorded = await bench.read_record()
    charged, held, by_key = await bench.read_figures()
    assert (charged, held, sum(by_key.values())) == (recorded, 0, recorded)
    # how many depends on the speed of the machine
    assert bench.leased > 10
    await bench.counters.close()
    for process in bench.processes:
        await process.stop()
    assert not bench.violations


@pytest.mark.parametrize("limits", CASES.values(), ids=CASES)
async def test_processes_exceed_no_limit(redis_server: RedisServer, limits: Limits) -> None:
    choice = random.Random(1)
    bench = LeaseBench(Counters(redis_server.url), limits, 1, account=name_account())
    for _ in range(3):
        bench.start()
    calling = asyncio.create_task(call_at_random(bench, choice))
    await wait_for(lambda: bench.refused > 100, what="refusals", seconds=MOST_SECONDS)
    await asyncio.sleep(1)
    calling.cancel()
    await check_end(bench)
    assert await bench.read_record() == sum(bench.spent.values())


async def test_sums_survive_losses_kills_and_cut_connections(redis_server: RedisServer) -> None:
    choice, direct = random.Random(2), Redis(port=redis_server.port)
    counters = Counters(redis_server.url)
    bench = LeaseBench(counters, Limits(funds=20_000_000), 2, account=name_account())
    for _ in range(3):
        bench.start()
    calling = asyncio.create_task(call_at_random(bench, choice))
    for step in ("cut", "lose", "kill", "cut", "lose", "kill"):
        await asyncio.sleep(choice.uniform(0.3, 1.5))
        if step == "lose":
            bench.note_loss()
            direct.flushall()
        elif step == "cut":
            direct.client_kill_filter(skipme=True)
        else:
            bench.start()
            await bench.kill(bench.processes[0])
    calling.cancel()
    await asyncio.sleep(1)
    # what killed processes have left behind is ended as the sweep does it
    await counters.mark_stale(bench.account.name)
    await bench.processes[0].rebuild(bench.account.name)
    await check_end(bench)
    direct.close()
