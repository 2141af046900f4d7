"""How budgets lie in Redis: what their loss shows by, what they cost, and what is left of them."""

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis
from redis.crc import key_slot

from gateway_core.billing.counters import AdmissionCall, Budget, Hold, Ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.windows import Buckets
from gateway_core.redis.link import Command, CountersStale
from tests.ports.counters_stores import RedisStore, rebuild
from tests.servers.server import RedisServer

ACCOUNT, KEY, POOL = "demo", "key/key-a", "guardrail/grd-a"
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NUMBER = int(NOON.timestamp())
SPENT = Buckets({NUMBER // 60: 5}, {NUMBER // 3600: 5}, {NUMBER // 86400: 5}, 12)
LEDGER = Ledger(
    12,
    {"2026-11-21": 5},
    {"a": 3, "b": 4},
    {"a": (KEY, POOL), "b": (POOL,)},
    {KEY: SPENT, POOL: SPENT},
)
ASKED = [Budget(KEY, 100, "1h"), Budget(POOL, 100, "7d")]
CALL = AdmissionCall(ACCOUNT, 10_000, Hold("c", 1, (KEY, POOL)), None, budgets=tuple(ASKED))


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisStore]:
    made = RedisStore(redis_server)
    made.lose()
    made.set_clock(NOON)
    await rebuild(made.counters, ACCOUNT, LEDGER)
    yield made
    await made.close()


def list_keys(direct: Redis, pattern: str) -> list[str]:
    return sorted(direct.scan_iter(pattern))


@pytest.mark.parametrize("lost", ["pools", "spent:*:guardrail/grd-a"])
async def test_part_that_is_evicted_makes_the_money_stale(store: RedisStore, lost: str) -> None:
    counters = store.counters
    before = await counters.read_budgets(ACCOUNT, ASKED)
    [key] = list_keys(store.direct, f"gw:*:{lost}")
    for refused in (
        counters.read_budgets(ACCOUNT, ASKED),
        counters.settle(ACCOUNT, "a", 3, NOON),
    ):
        store.direct.delete(key)
        with pytest.raises(CountersStale):
            await refused
        with pytest.raises(CountersStale):
            await counters.read_spending(ACCOUNT, "2026-11-21")
        await rebuild(counters, ACCOUNT, LEDGER)
        [key] = list_keys(store.direct, f"gw:*:{lost}")
    store.direct.delete(key)
    answer = await counters.admit(CALL)
    assert (answer.stale, answer.held, answer.exceeded) == (True, False, None)
    await rebuild(counters, ACCOUNT, LEDGER)
    assert await counters.read_budgets(ACCOUNT, ASKED) == before
    assert {hold.task for hold in await counters.list_holds(ACCOUNT, 0)} == {"a", "b"}


async def test_settlement_that_finds_a_part_missing_charges_nowhere(store: RedisStore) -> None:
    [key] = list_keys(store.direct, "gw:*:spent:*:guardrail/grd-a")
    kept = list_keys(store.direct, "gw:*:spent:*:key/key-a")[0]
    before = store.direct.hgetall(kept)
    store.direct.delete(key)
    with pytest.raises(CountersStale):
        await store.counters.settle(ACCOUNT, "a", 3, NOON)
    assert store.direct.hgetall(kept) == before
    assert store.direct.hget("gw:{default/demo}:money", "charged") == "12"
    assert store.direct.hget("gw:{default/demo}:holds", "a")


async def test_rebuild_leaves_nothing_of_the_former_and_nothing_that_expires(
    store: RedisStore,
) -> None:
    direct = store.direct
    before = list_keys(direct, "gw:*:spent:*")
    assert len(before) == 2
    direct.hdel("gw:{default/demo}:money", "epoch")
    await rebuild(store.counters, ACCOUNT, LEDGER)
    after = list_keys(direct, "gw:*:spent:*")
    assert len(after) == 2
    assert not set(before) & set(after)
    assert {direct.ttl(key) for key in list_keys(direct, "gw:*")} == {-1}


async def test_staged_keys_of_an_unfinished_rebuild_expire(store: RedisStore) -> None:
    direct, counters = store.direct, store.counters
    direct.hdel("gw:{default/demo}:money", "epoch")
    token = await counters.begin_rebuild(ACCOUNT)
    assert token is not None
    await counters.abandon_rebuild(ACCOUNT, token)
    kept = set(list_keys(direct, "gw:*"))
    assert not await counters.finish_rebuild(ACCOUNT, token, LEDGER)
    staged = set(list_keys(direct, "gw:*")) - kept
    assert staged
    assert all(0 < direct.ttl(key) <= 30 for key in staged)


async def test_rebuild_of_which_a_part_was_evicted_is_none(store: RedisStore) -> None:
    direct, counters = store.direct, store.counters
    direct.hdel("gw:{default/demo}:money", "epoch")
    token = await counters.begin_rebuild(ACCOUNT)
    assert token is not None
    short = _Forgetful(direct, token)
    assert not await short.finish_rebuild(ACCOUNT, token, LEDGER)
    await short.close()
    assert (await counters.admit(CALL)).stale


class _Forgetful(Counters):
    """Counters of which a staged part is evicted before the last step."""

    def __init__(self, direct: Redis, token: str) -> None:
        port = direct.connection_pool.connection_kwargs["port"]
        super().__init__(f"redis://127.0.0.1:{port}/0")
        self._direct = direct
        self._lost = f"gw:{{default/{ACCOUNT}}}:spent:{token}:{POOL}"

    async def _stage(self, commands: Iterable[Command]) -> None:
        await super()._stage(commands)
        assert self._direct.delete(self._lost)


async def test_buckets_that_no_window_counts_are_forgotten(store: RedisStore) -> None:
    counters, now = store.counters, NOON
    for _ in range(40 * 24):
        now += timedelta(minutes=61)
        store.set_clock(now)
        await counters.hold(ACCOUNT, Hold(str(now), 1, (KEY,)))
        await counters.settle(ACCOUNT, str(now), 1, now)
    for minute in range(150):
        store.set_clock(now + timedelta(minutes=minute))
        await counters.hold(ACCOUNT, Hold(f"m{minute}", 1, (KEY,)))
        await counters.settle(ACCOUNT, f"m{minute}", 1, now + timedelta(minutes=minute))
    [key] = list_keys(store.direct, "gw:*:spent:*:key/key-a")
    fields = store.direct.hkeys(key)
    grains = {letter: sum(f[0] == letter and f[1:].isdigit() for f in fields) for letter in "mhd"}
    assert 61 <= grains["m"] <= 64 + 60
    assert 169 <= grains["h"] <= 173
    assert 32 <= grains["d"] <= 35
    [state] = await counters.read_budgets(ACCOUNT, [Budget(KEY, None, "lifetime")])
    assert state.used == 12 + 40 * 24 + 150


async def test_admission_is_one_script_and_reads_buckets_once_a_minute(
    store: RedisStore,
) -> None:
    direct, counters = store.direct, store.counters
    await counters.prepare(5)
    await counters.admit(CALL)
    direct.config_resetstat()
    for number in range(50):
        hold = Hold(f"t{number}", 1, (KEY, POOL))
        call = AdmissionCall(ACCOUNT, 10_000, hold, 10_000, budgets=tuple(ASKED))
        assert (await counters.admit(call)).held
    stats = direct.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 50
    assert "cmdstat_hgetall" not in stats
    store.set_clock(NOON + timedelta(minutes=1))
    await counters.admit(AdmissionCall(ACCOUNT, 10_000, Hold("u", 1), None, budgets=tuple(ASKED)))
    assert direct.info("commandstats")["cmdstat_hgetall"]["calls"] == 1, "1h alone has moved on"


async def test_all_keys_of_an_account_are_in_one_slot(store: RedisStore) -> None:
    budget = Budget(KEY, 100, "1h", requests_per_minute=9)
    await store.counters.admit(
        AdmissionCall(ACCOUNT, 9, Hold("c", 1, (KEY,)), None, budgets=(budget,))
    )
    await store.counters.settle(ACCOUNT, "c", 1, NOON)
    await store.counters.begin_rebuild(ACCOUNT)
    keys = list_keys(store.direct, "*")
    assert len(keys) >= 8
    assert len({key_slot(key.encode()) for key in keys}) == 1
