"""What becomes of the counters when Redis is killed, emptied, halted or restored from the past."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from redis import Redis

from gateway_core.admission.intake import IntakeStop
from gateway_core.billing.counters import AdmissionCall, Budget, Hold, Ledger
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.windows import Buckets
from gateway_core.files.quota_counters import PartCaps, PartLedger, StorageLedger
from gateway_core.providers.health import HealthReports
from gateway_core.redis import batches, link
from gateway_core.redis.connection import MAX_RETIREMENTS
from gateway_core.redis.link import (
    COMMAND_SECONDS,
    CountersRefused,
    CountersStale,
    CountersUnavailable,
)
from gateway_core.redis.scripts import SCRIPTS
from gateway_core.redis.transient import TransientStore
from tests.fakes.health import FakeHealthReports
from tests.fakes.intake import FakeIntakeStop
from tests.ports.counters_stores import rebuild
from tests.servers.proxy import Proxy
from tests.servers.server import RedisServer
from tests.shares import share
from tests.tallies import Tally

DEMOTIONS = 25
ACCOUNT, DAY = "demo", "2026-11-21"
AT = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
LEDGER = Ledger(12, {DAY: 5}, {"a": 3, "b": 4})
CALL = AdmissionCall(ACCOUNT, 300, Hold("c", 1), 100)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
async def counters(server: RedisServer) -> AsyncIterator[Counters]:
    made = Counters(server.url)
    yield made
    await made.close()


async def admit_when_back(counters: Counters) -> bool:
    """Asks until the store answers; whether it says that money is stale."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(CountersUnavailable):
            return (await counters.admit(CALL)).stale
        await asyncio.sleep(0.02)
    raise TimeoutError("Redis did not come back")


async def test_after_kill_and_restart_money_is_stale_until_rebuilt(
    server: RedisServer, counters: Counters
) -> None:
    await rebuild(counters, ACCOUNT, LEDGER)
    before = await counters.read_spending(ACCOUNT, DAY)
    server.kill()
    for refused in (counters.admit(CALL), counters.settle(ACCOUNT, "a", 3, AT)):
        with pytest.raises(CountersUnavailable):
            await refused
    server.start()
    assert await admit_when_back(counters)
    with pytest.raises(CountersStale):
        await counters.settle(ACCOUNT, "a", 3, AT)
    await rebuild(counters, ACCOUNT, LEDGER)
    assert await counters.read_spending(ACCOUNT, DAY) == before


async def test_restart_between_two_calls_fails_neither(
    server: RedisServer, counters: Counters
) -> None:
    await rebuild(counters, ACCOUNT, LEDGER)
    await asyncio.to_thread(server.restart)
    assert (await counters.admit(CALL)).stale


async def test_old_snapshot_is_stale_in_every_store(server: RedisServer) -> None:
    """Restored from the past, money, budgets, storage and parts are rebuilt before they count."""
    counters, storage, parts = (made(server.url) for made in (Counters, StorageLedger, PartLedger))
    budget = Budget("key/key-a", 100, "lifetime")
    ledger = replace(LEDGER, spent={budget.subject: Buckets(total=9)})
    await rebuild(counters, ACCOUNT, ledger)
    before = await counters.read_budgets(ACCOUNT, [budget])
    money = await counters.begin_rebuild(ACCOUNT)
    pool = await storage.begin_rebuild(ACCOUNT, "files")
    assert money is not None
    assert pool is not None
    await storage.establish_versions(ACCOUNT, 7)
    await parts.establish(ACCOUNT, "u", {})
    with Redis(port=server.port) as direct:
        direct.save()
        await asyncio.to_thread(server.restart)
        assert direct.hget("gw:{default/demo}:money", "charged") == b"12"
    assert (await counters.admit(CALL)).stale
    for refused in (
        counters.read_budgets(ACCOUNT, [budget]),
        storage.read_used(ACCOUNT, "files"),
        parts.claim(ACCOUNT, "u", "a", 1, PartCaps(3, 100)),
    ):
        with pytest.raises(CountersStale):
            await refused
    assert await storage.read_version(ACCOUNT) is None
    assert not await counters.finish_rebuild(ACCOUNT, money, Ledger(0))
    assert not await storage.finish_rebuild(ACCOUNT, "files", pool, {})
    await rebuild(counters, ACCOUNT, ledger)
    assert await counters.read_budgets(ACCOUNT, [budget]) == before
    assert before[0].used == 9
    for store in (counters, storage, parts):
        await store.close()


@pytest.mark.parametrize("lost", ["FLUSHALL", "gw:{default/demo}:money", "gw:{default/demo}:holds"])
async def test_flushed_counters_are_stale(
    server: RedisServer, counters: Counters, lost: str
) -> None:
    await rebuild(counters, ACCOUNT, LEDGER)
    before = await counters.read_spending(ACCOUNT, DAY)
    with Redis(port=server.port) as direct:
        if lost == "FLUSHALL":
            direct.flushall()
        else:
            # An eviction takes one key and leaves the other.
            direct.delete(lost)
    assert (await counters.admit(CALL)).stale
    for refused in (
        counters.hold(ACCOUNT, Hold("c", 1)),
        counters.settle(ACCOUNT, "a", 3, AT),
        counters.read_spending(ACCOUNT, DAY),
        counters.list_holds(ACCOUNT, 0),
    ):
        with pytest.raises(CountersStale):
            await refused
    await rebuild(counters, ACCOUNT, LEDGER)
    assert await counters.read_spending(ACCOUNT, DAY) == before


async def test_scripts_that_the_server_forgot_are_sent_again(
    server: RedisServer, counters: Counters
) -> None:
    await rebuild(counters, ACCOUNT, LEDGER)
    with Redis(port=server.port) as direct:
        direct.script_flush()
    answers = await asyncio.gather(*(counters.admit(CALL) for _ in range(20)))
    assert all(answer.held for answer in answers)
    assert sorted(answer.rate.remaining for answer in answers) == [*range(280, 300)]


@pytest.mark.parametrize("connected", [False, True])
async def test_pause_of_this_process_is_not_taken_for_the_servers(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    """Over the time-outs of the call under way, of connecting, and of those that wait."""
    counters = Counters(server.url)
    await rebuild(counters, ACCOUNT, LEDGER)
    if not connected:
        await counters.close()
        counters = Counters(server.url)
    for module in (link, batches):
        monkeypatch.setattr(module, "COMMAND_SECONDS", 0.3)

    async def pause() -> None:
        time.sleep(0.6)

    answers, _ = await asyncio.gather(
        asyncio.gather(*(counters.admit(CALL) for _ in range(50))), pause()
    )
    assert all(answer.held for answer in answers)
    await counters.close()


async def test_halted_server_is_unavailable_within_the_time_out_and_then_serves_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many call: what waits for its turn does not wait for a time-out of its own."""
    answered: list[bool] = []
    counters = Counters(server.url, note=lambda _, ok: answered.append(ok))
    await rebuild(counters, ACCOUNT, LEDGER)
    server.stop()
    started = time.monotonic()
    try:
        with monkeypatch.context() as limits:
            for module in (link, batches):
                limits.setattr(module, "COMMAND_SECONDS", COMMAND_SECONDS)
            results = await asyncio.gather(
                *(counters.admit(CALL) for _ in range(5000)), return_exceptions=True
            )
    finally:
        server.go_on()
    # one exchange after the other, they take 80 s
    assert time.monotonic() - started < 20 * COMMAND_SECONDS
    assert answered.count(False) == 1
    assert all(isinstance(result, CountersUnavailable) for result in results)
    assert not await admit_when_back(counters)
    assert (await counters.read_spending(ACCOUNT, DAY)).held in (7, 8)
    await counters.close()


async def test_error_of_one_account_differs_from_an_outage(
    server: RedisServer, counters: Counters
) -> None:
    broken, other = (AdmissionCall(name, 300, None, None) for name in (ACCOUNT, "other"))
    with Redis(port=server.port) as direct:
        direct.set("gw:{default/demo}:rate", "no list")
        answers = await asyncio.gather(
            counters.admit(broken), counters.admit(other), return_exceptions=True
        )
        assert isinstance(answers[0], CountersRefused)
        assert not isinstance(answers[1], BaseException)
        # as one is while another takes over from it
        direct.replicaof("127.0.0.1", 1)
        with pytest.raises(CountersUnavailable) as unavailable:
            await counters.admit(other)
        assert unavailable.type is CountersUnavailable


async def test_demoted_master_is_left_after_one_failed_call(
    tally: Callable[[str, str], Tally],
) -> None:
    """The name leads to the new master; connections to the former one stay open."""
    told = tally("F30", "master demoted behind its name")
    for _ in range(share(DEMOTIONS)):
        async with told.trial():
            await demote()
    told.check()


async def demote() -> None:
    """Demotes a master with counters; its clients fail until the name leads to the new one."""
    with RedisServer() as server, RedisServer() as promoted, Proxy(server.port) as name:
        counters = Counters(f"redis://127.0.0.1:{name.port}/0")
        assert await counters.prepare(5)
        await rebuild(counters, ACCOUNT, LEDGER)
        before = await counters.read_spending(ACCOUNT, DAY)
        with Redis(port=server.port) as former:
            former.replicaof("127.0.0.1", str(promoted.port))
        # the name is late: each call connects to the replica again
        for _ in range(3):
            with pytest.raises(CountersUnavailable):
                await counters.admit(CALL)
        name.point_to(promoted.port)
        # several at once, so that every connection of the pool is used
        answers = await asyncio.gather(
            counters.admit(CALL), *(counters.list_accounts() for _ in range(8))
        )
        assert answers[0].stale
        await rebuild(counters, ACCOUNT, LEDGER)
        assert await counters.read_spending(ACCOUNT, DAY) == before
        await counters.close()


async def test_subscription_leaves_a_demoted_master(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PING_SECONDS", 0.1)
    received: list[bytes] = []
    with RedisServer() as promoted, Proxy(server.port) as name:
        store = link.RedisAdapter(f"redis://127.0.0.1:{name.port}/0")
        listening = asyncio.create_task(store.listen("news", received.append))
        with Redis(port=server.port) as former, Redis(port=promoted.port) as current:
            while not received:
                former.publish("news", "first")
                await asyncio.sleep(0.01)
            # a replica without a link to the new master hears nothing of it
            former.replicaof("127.0.0.1", "1")
            name.point_to(promoted.port)
            with pytest.raises(CountersUnavailable):
                await asyncio.wait_for(listening, 60)
            listening = asyncio.create_task(store.listen("news", received.append))
            while received[-1] != b"second":
                current.publish("news", "second")
                await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await store.close()


@pytest.mark.parametrize(
    "reply",
    [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script: @user_script:1: -READONLY You can't write",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "BUSY Redis is busy running a script.",
        "LOADING Redis is loading the dataset in memory",
        "NOAUTH Authentication required.",
    ],
)
async def test_reply_that_rejects_all_writes_closes_the_connection(
    reply: str, tally: Callable[[str, str], Tally]
) -> None:
    told = tally("F30", "replies that reject all writes")
    async with told.trial(), _rejecting(reply, connections=1) as (store, count):
        with pytest.raises(CountersUnavailable):
            await store.read("a")
        assert await store.read("a") == b"value"
        assert await store.read("a") == b"value"
        assert count() == 2
    told.check()


async def test_long_rejection_costs_few_connections() -> None:
    async with _rejecting("OOM command not allowed", connections=1_000) as (store, count):
        for _ in range(100):
            with pytest.raises(CountersUnavailable):
                await store.read("a")
        assert count() <= 1 + 3 * MAX_RETIREMENTS


@contextlib.asynccontextmanager
async def _rejecting(
    reply: str, *, connections: int
) -> AsyncIterator[tuple[TransientStore, Callable[[], int]]]:
    """A store whose first `connections` get an error for each GET, and how many it has opened."""
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        own = opened
        while data := await reader.read(65536):
            writer.write(b"+OK\r\n" * data.count(b"SETINFO"))
            if b"server" in data:
                writer.write(b"$9\r\nrun_id:a1\r\n")
            elif b"GET" in data:
                is_rejected = own <= connections
                writer.write(f"-{reply}\r\n".encode() if is_rejected else b"$5\r\nvalue\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    store = TransientStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
    yield store, lambda: opened
    await store.close()
    server.close()


async def test_caller_that_gives_up_harms_no_other(server: RedisServer, counters: Counters) -> None:
    await rebuild(counters, ACCOUNT, LEDGER)

    async def admit(number: int) -> int:
        call = AdmissionCall(f"acct-{number}", 10 + number, None, None)
        return (await counters.admit(call)).rate.limit

    for doomed in range(0, 40, 7):
        tasks = [asyncio.create_task(admit(number)) for number in range(40)]
        await asyncio.sleep(0)
        tasks[doomed].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(results):
            if number == doomed:
                assert isinstance(result, asyncio.CancelledError)
            else:
                assert result == 10 + number


@pytest.mark.parametrize("is_fake", [False, True], ids=["redis", "fake"])
async def test_store_that_is_away_is_unavailable_to_every_call(is_fake: bool) -> None:
    url = "redis://127.0.0.1:1/0"
    if is_fake:
        health, intake = FakeHealthReports(), FakeIntakeStop()
        health.away = intake.away = True
        calls: list[Awaitable[object]] = []
    else:
        health, intake = HealthReports(url), IntakeStop(url)
        counters, storage, parts = (made(url) for made in (Counters, StorageLedger, PartLedger))
        transient = TransientStore(url)
        calls = [
            counters.admit(CALL),
            counters.list_accounts(),
            storage.claim(ACCOUNT, "files", "a", 1, 1000),
            parts.forget(ACCOUNT, "u"),
            transient.put("a", b"", 1),
            transient.put_in("group", "a", b"", 1, most=1, group_seconds=1),
            transient.read("a"),
            transient.take("a"),
            transient.remove("a"),
            transient.count("a", 1),
        ]
    calls += [health.read(), health.write("api-1", b"")]
    calls += [intake.is_set(), intake.clear(), intake.set(1)]
    for call in calls:
        with pytest.raises(CountersUnavailable):
            await call


async def test_clock_set_back_by_an_hour_does_not_shut_the_door_for_one(
    server: RedisServer, counters: Counters
) -> None:
    with Redis(port=server.port) as direct:
        ahead = int((time.time() + 3600) * 1_000_000)
        direct.rpush("gw:{default/demo}:rate", *[ahead] * 300)
    answer = await counters.admit(AdmissionCall(ACCOUNT, 300, None, None))
    assert not answer.rate_exceeded
    assert answer.rate.remaining == 299


async def test_prepared_connection_knows_every_script(server: RedisServer) -> None:
    counters = Counters(server.url)
    assert await counters.prepare(5)
    with Redis(port=server.port) as direct:
        assert all(
            direct.script_exists(*(direct.register_script(script).sha for script in SCRIPTS))
        )
        assert int(direct.info("clients")["connected_clients"]) >= 3
    await counters.close()


async def test_preparing_ends_though_nobody_is_there(server: RedisServer) -> None:
    server.kill()
    counters = Counters(server.url)
    began = time.monotonic()
    assert not await counters.prepare(1)
    assert time.monotonic() - began < 30
    await counters.close()


async def test_preparing_waits_for_a_server_that_starts(server: RedisServer) -> None:
    server.kill()
    counters = Counters(server.url)
    preparing = asyncio.create_task(counters.prepare(20))
    await asyncio.sleep(0.1)
    assert not preparing.done()
    await asyncio.to_thread(server.start)
    assert await preparing
    await counters.close()
