"""Money under a Redis that evicts keys, and the warning about its policy."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime

import pytest
from redis import Redis

from gateway_core.billing.counters import AdmissionCall, Budget, Hold, Ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.spending import SpentSum
from gateway_core.billing.windows import number_day
from gateway_core.redis import eviction
from gateway_core.redis.eviction import EvictionWatch
from gateway_core.redis.link import CountersStale
from tests.servers.server import RedisServer
from tests.shares import IS_WHOLE
from tests.tallies import Tally

EVICTIONS = 500_000 if IS_WHOLE else 5_000
ACCOUNTS = 40
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DAY, KEY = "2026-11-21", "key/key-a"
FILLER = b"x" * 1000


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
async def counters(server: RedisServer) -> AsyncIterator[Counters]:
    made = Counters(server.url, clock=AT.timestamp)
    yield made
    await made.close()


def describe_ledger(charged: int) -> Ledger:
    spent = SpentSum()
    spent.add(charged, number_day(AT.date()), 12 * 60)
    return Ledger(charged, {DAY: charged}, spent={KEY: spent.freeze()})


async def test_each_charge_counts_once_while_keys_are_evicted(
    server: RedisServer, counters: Counters, tally: Callable[[str, str], Tally]
) -> None:
    told = tally("F31", "keys evicted while money is charged")
    charges = dict.fromkeys((f"acct-{number}" for number in range(ACCOUNTS)), 0)
    chance, rebuilds, tasks = random.Random(7), 0, 0
    async with told.trial(count=EVICTIONS):
        with Redis(port=server.port) as direct:
            direct.config_set("maxmemory-policy", "allkeys-random")
            direct.config_set("maxmemory", int(direct.info("memory")["used_memory"]) + 2_000_000)
            while int(direct.info("stats")["evicted_keys"]) < EVICTIONS:
                pipe = direct.pipeline(transaction=False)
                for _ in range(1000):
                    pipe.set(f"filler:{chance.getrandbits(64)}", FILLER)
                pipe.execute()
                for account in chance.choices(list(charges), k=20):
                    tasks += 1
                    hold = Hold(f"task-{tasks}", 5, (KEY,))
                    call = AdmissionCall(account, 1_000_000, hold, 10**9, budgets=(Budget(KEY),))
                    while not (answer := await counters.admit(call)).held:
                        assert answer.stale
                        token = await counters.begin_rebuild(account)
                        assert token is not None
                        # if the token is evicted, the next admission asks for another rebuild
                        await counters.finish_rebuild(
                            account, token, describe_ledger(charges[account])
                        )
                        rebuilds += 1
                    charges[account] += 3
                    try:
                        assert await counters.settle(account, hold.task, 3, AT)
                        spending = await counters.read_spending(account, DAY)
                        [budget] = await counters.read_budgets(account, [Budget(KEY)])
                    except CountersStale:
                        continue
                    assert (spending.charged, spending.held) == (charges[account], 0)
                    assert (budget.used, budget.held) == (charges[account], 0)
        assert rebuilds > ACCOUNTS
    told.note("rebuilds", rebuilds)
    told.check()


@pytest.mark.parametrize(
    ("policy", "evicts"), [("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True)]
)
async def test_policy_is_noted_and_warned_of_where_config_is_forbidden(
    server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    evicts: bool,
) -> None:
    monkeypatch.setattr(eviction, "READ_SECONDS", 0.01)
    with Redis(port=server.port) as direct:
        direct.config_set("maxmemory-policy", policy)
        direct.execute_command("ACL", "SETUSER", "default", "-config")
    watch, noted = EvictionWatch(server.url), asyncio.Queue[bool]()
    running = asyncio.create_task(watch.run(noted.put_nowait))
    assert [await asyncio.wait_for(noted.get(), 60) for _ in range(2)] == [evicts] * 2
    running.cancel()
    await watch.close()
    assert capsys.readouterr().out.count(policy) == (1 if evicts else 0)
