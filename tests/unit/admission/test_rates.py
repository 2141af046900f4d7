"""Rate headers and what holds while counters are lost or away (contract §12, I7)."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import pytest

from gateway_core.accounts.records import AccountRecord
from gateway_core.admission import rates
from gateway_core.admission.rates import (
    LAPSE_PAUSE_SECONDS,
    MOST_LAPSES,
    RateLimiter,
    RecentRejections,
)
from gateway_core.api.errors import Unavailable
from gateway_core.billing.counters import AdmissionAnswer, AdmissionCall, Budget, Hold, Ledger
from gateway_core.billing.ledger import RebuildLapsed
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.redis.link import CountersRefused
from tests.fakes.clock import in_virtual_time
from tests.fakes.counters import FakeCounters
from tests.fakes.kubernetes import Fault
from tests.unit.apiserver.gateway import COMPLETED, Answer, Gateway, body

RATE = ("x-ratelimit-limit-rpm", "x-ratelimit-remaining-rpm", "x-ratelimit-reset")


def rate_of(answer: Answer) -> tuple[int, ...]:
    return tuple(int(answer.headers[name]) for name in RATE)


async def test_answers_of_a_paid_route_have_rate_headers(gateway: Gateway) -> None:
    start = gateway.counters.now
    reset = int(start) + 61
    answers = [
        await gateway.create(idempotency_key="k"),
        await gateway.create(idempotency_key="k"),
        await gateway.create(b"{"),
        await gateway.create(content_type="text/plain"),
        await gateway.create(body(prompt="other"), idempotency_key="k"),
        await gateway.create(b"x" * (1024 * 1024 + 1)),
    ]
    assert [answer.status for answer in answers] == [202, 202, 400, 415, 409, 413]
    assert [rate_of(answer) for answer in answers] == [(300, 299 - n, reset) for n in range(6)]


async def test_402_counts_and_401_403_429_do_not(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 0}, requestsPerMinute=2)
    await gateway.create(key="nonsense")
    await gateway.create(key=gateway.put_key("demo", "Management"))
    poor = await gateway.create()
    assert (poor.status, rate_of(poor)[:2]) == (402, (2, 1))
    assert rate_of(await gateway.create())[:2] == (2, 0)
    for _ in range(3):
        limited = await gateway.create()
        assert limited.status == 429
        assert set(limited.json) == {"error"}
        assert rate_of(limited)[:2] == (2, 0)
    gateway.counters.now += int(limited.headers["retry-after"])
    assert (await gateway.create()).status == 402


async def test_reads_do_not_count_and_have_no_rate_headers(gateway: Gateway) -> None:
    created = await gateway.create()
    for answer in (await gateway.poll(created.json["id"]), await gateway.get("/api/v1/me")):
        assert not set(RATE) & set(answer.headers)
    assert rate_of(await gateway.create())[1] == 298


async def test_keyed_calls_over_the_rate_read_neither_the_record_nor_the_archive(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.put_account("demo", requestsPerMinute=1)
    await gateway.create()
    get = AsyncMock(side_effect=gateway.store.get)
    monkeypatch.setattr(gateway.store, "get", get)
    gateway.kube.calls.clear()
    for number in range(20):
        assert (await gateway.create(idempotency_key=f"k-{number}")).status == 429
    assert gateway.kube.calls.count(("get", "gatewaytasks")) == 1
    assert get.await_count == 1


class TestLostMoney:
    async def test_money_is_rebuilt_from_the_record(self, gateway: Gateway) -> None:
        live = await gateway.create()
        ended = await gateway.create()
        gateway.end_task(ended.json["id"], COMPLETED)
        gateway.counters.lose()
        answer = await gateway.create()
        assert answer.status == 202
        assert rate_of(answer)[1] == 299
        spending = await gateway.counters.read_spending("demo", "2026-11-21")
        assert (spending.charged, spending.held) == (500_000, 1_000_000)
        assert live.json["id"] != answer.json["id"]

    async def test_call_beyond_a_rebuilt_budget_is_not_counted(self, gateway: Gateway) -> None:
        limited = gateway.put_key("demo", limit={"micros": 500_000, "window": "weekly"})
        assert (await gateway.create(key=limited)).status == 202
        gateway.counters.lose()
        refused = await gateway.create(key=limited)
        assert (refused.status, set(RATE) & set(refused.headers)) == (429, set())
        assert rate_of(await gateway.create())[1] == 299

    async def test_concurrent_calls_wait_for_one_rebuild(self, gateway: Gateway) -> None:
        gateway.counters.lose()
        answers = await asyncio.gather(*(gateway.create() for _ in range(20)))
        assert {answer.status for answer in answers} == {202}
        assert await gateway.held() == 20 * 500_000
        assert gateway.kube.calls.count(("list_page", "gatewaytasks")) == 1

    async def test_failed_rebuild_is_503_with_the_rate(self, gateway: Gateway) -> None:
        gateway.kube.order_faults("list_page", Fault(KubernetesUnavailable("x")))
        answer = await gateway.create()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert rate_of(answer)[1] == 299
        assert gateway.task_count() == 0

    async def test_rebuild_of_another_replica_is_waited_for(self, gateway: Gateway) -> None:
        token = await gateway.counters.begin_rebuild("demo")
        assert token is not None
        waiting = asyncio.create_task(gateway.create())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert await gateway.counters.finish_rebuild("demo", token, Ledger(charged=0))
        assert (await waiting).status == 202
        assert ("list_page", "gatewaytasks") not in gateway.kube.calls

    @pytest.mark.parametrize(("unlimited", "status"), [(False, 503), (True, 202)])
    async def test_wait_for_the_rebuild_of_another_replica_is_bounded(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, unlimited: bool, status: int
    ) -> None:
        monkeypatch.setattr(rates, "REBUILD_WAIT_SECONDS", 0.05)
        gateway.put_account("demo", unlimited=unlimited)
        await gateway.counters.begin_rebuild("demo")
        assert (await gateway.create()).status == status

    async def test_wait_for_a_rebuild_is_bounded(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rates, "REBUILD_WAIT_SECONDS", 0.05)
        gate = asyncio.Event()
        list_page = gateway.kube.list_page

        async def wait(*args: Any, **options: Any) -> Any:
            await gate.wait()
            return await list_page(*args, **options)

        gateway.kube.list_page = wait  # type: ignore[method-assign]
        assert (await gateway.create()).status == 503
        gate.set()
        statuses = {(await gateway.create()).status for _ in range(3)}
        assert 202 in statuses


class TestWithoutCounters:
    async def test_account_that_needs_a_hold_is_503(self, gateway: Gateway) -> None:
        gateway.counters.away = True
        answer = await gateway.create()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert gateway.task_count() == 0

    @pytest.mark.parametrize(("replicas", "mcp_replicas"), [(3, 0), (2, 1)])
    async def test_unlimited_account_has_its_part_of_the_limit(
        self, replicas: int, mcp_replicas: int
    ) -> None:
        gateway = Gateway(replicas=replicas, mcp_replicas=mcp_replicas)
        gateway.put_account("demo", unlimited=True, requestsPerMinute=6)
        gateway.counters.away = True
        answers = [await gateway.create() for _ in range(3)]
        assert [answer.status for answer in answers] == [202, 202, 429]
        assert rate_of(answers[0])[:2] == (6, 1)
        assert 1 <= int(answers[2].headers["retry-after"]) <= 60


def record(**changes: Any) -> AccountRecord:
    base = AccountRecord("a", 1, 2, "A", "O", "o@e.com", 0, 0, True, False, 2, 0)
    return replace(base, **changes)


class TestGateInAnOutage:
    """The clock is the test's."""

    def setup_method(self) -> None:
        self.now = 1000.0
        self.counters = FakeCounters()
        self.counters.away = True
        self.gate = RateLimiter(self.counters, self._rebuild, clock=lambda: self.now)

    async def _rebuild(self, _: str) -> bool:
        return True

    async def admit(
        self, account: AccountRecord | None = None, budgets: tuple[Budget, ...] = ()
    ) -> AdmissionAnswer:
        return await self.gate.admit(account or record(), None, budgets)

    async def test_window_is_sliding(self) -> None:
        assert not (await self.admit()).rate_exceeded
        self.now += 30
        assert not (await self.admit()).rate_exceeded
        answer = await self.admit()
        assert (answer.rate_exceeded, answer.retry_after, answer.rate.reset) == (True, 30, 1060)
        self.now += 30
        assert not (await self.admit()).rate_exceeded

    async def test_calls_are_refused_after_a_minute_of_outage(self) -> None:
        account = record(requests_per_minute=10)
        for _ in range(3):
            await self.admit(account)
            self.now += 30
        with pytest.raises(Unavailable):
            await self.admit(account)

    async def test_failures_an_hour_apart_are_separate_outages(self) -> None:
        account = record(requests_per_minute=10)
        await self.admit(account)
        self.now += 3600
        for _ in range(3):
            assert not (await self.admit(account)).rate_exceeded
            self.now += 29
        with pytest.raises(Unavailable):
            await self.admit(account)

    async def test_refusal_of_redis_for_one_account_is_no_outage(self) -> None:
        admit = self.counters.admit

        async def refuse_one(call: AdmissionCall) -> AdmissionAnswer:
            if call.account == "broken":
                raise CountersRefused("WRONGTYPE")
            return await admit(call)

        self.counters.admit = refuse_one  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(Unavailable) as refused:
                await self.admit(record(name="broken"))
            assert refused.value.retry_after == 5
            self.now += 25
        assert not (await self.admit()).rate_exceeded

    async def test_minute_begins_anew_with_the_next_outage(self) -> None:
        await self.admit()
        self.now += 59
        self.counters.away = False
        await self.admit()
        self.counters.away = True
        self.now += 59
        assert not (await self.admit()).rate_exceeded

    async def test_limited_key_is_refused_without_counters(self) -> None:
        """An unlimited account's key may be limited: only the counters know what it has spent."""
        for limit in (0, 10**9):
            limited = (Budget("key/a"), Budget("guardrail/b", limit, "weekly"))
            with pytest.raises(Unavailable) as refused:
                await self.gate.admit(record(), Hold("t", 0, ("key/a",)), limited)
            assert refused.value.retry_after == 5
        answer = await self.gate.admit(record(), Hold("t", 5), (Budget("key/a"),))
        assert not answer.rate_exceeded

    async def test_rates_are_counted_by_their_part_and_all_or_none(self) -> None:
        gate = RateLimiter(self.counters, self._rebuild, replicas=2, clock=lambda: self.now)
        account = record(requests_per_minute=12)
        key, pool = (
            Budget("key/a", requests_per_minute=4),
            Budget("guardrail/b", requests_per_minute=9),
        )
        told = []
        for budgets in [(key, pool), (key, pool), (key, pool), (pool,), (), (pool,), (pool,)]:
            answer = await gate.admit(account, None, budgets)
            told.append((answer.rate.limit, answer.rate.remaining, answer.rate_exceeded))
            self.now += 1
        assert told == [
            (4, 1, False),
            (4, 0, False),
            (4, 0, True),
            (9, 1, False),
            (12, 2, False),
            (9, 0, False),
            (9, 0, True),
        ]

    async def test_advised_wait_is_that_of_the_last_rate_to_be_free(self) -> None:
        key = Budget("key/a", requests_per_minute=1)
        account = record(requests_per_minute=2)
        await self.admit(account)
        self.now += 5
        await self.admit(account, (key,))
        self.now += 5
        answer = await self.admit(account, (key,))
        assert (answer.retry_after, answer.rate.limit, answer.rate.reset) == (55, 1, 1065)
        self.now += 50
        assert (await self.admit(account, (key,))).rate_exceeded

    async def test_lowered_limit_waits_for_all_calls_over_it(self) -> None:
        for _ in range(3):
            await self.admit(record(requests_per_minute=3))
            self.now += 5
        answer = await self.admit(record(requests_per_minute=1))
        assert (answer.rate_exceeded, answer.retry_after) == (True, 55)

    async def test_call_that_waits_for_a_rebuild_is_counted_once(self) -> None:
        calls: list[AdmissionCall] = []
        admit = self.counters.admit

        async def spy(call: AdmissionCall) -> AdmissionAnswer:
            calls.append(call)
            return await admit(call)

        self.counters.away = False
        self.counters.admit = spy  # type: ignore[method-assign]
        token = await self.counters.begin_rebuild("a")
        assert token is not None

        async def finish(_: str) -> bool:
            return await self.counters.finish_rebuild("a", token, Ledger(0))

        account = record(requests_per_minute=9)
        answer = await RateLimiter(self.counters, finish).admit(account, Hold("t", 1))
        assert (answer.held, answer.rate.remaining, len(calls)) == (True, 8, 2)
        assert (await self.admit(account)).rate.remaining == 7

    async def test_call_whose_money_stays_lost_is_counted_once(self) -> None:
        self.counters.away = False
        account = record(requests_per_minute=2)
        answers = [await self.gate.admit(account, Hold("t", 1)) for _ in range(3)]
        assert [(a.stale, a.rate.remaining) for a in answers[:2]] == [(True, 1), (True, 0)]
        assert answers[2].rate_exceeded

    async def test_counters_lost_during_a_rebuild_are_done_without(self) -> None:
        async def leave(_: str) -> bool:
            self.counters.away = True
            return True

        gate = RateLimiter(self.counters, leave, clock=lambda: self.now)
        self.counters.away = False
        answer = await gate.admit(record(), Hold("t", 1))
        assert (answer.held, answer.rate.remaining) == (False, 1)
        assert (await gate.admit(record(), Hold("t", 1))).rate.remaining == 0
        self.counters.away = False
        with pytest.raises(Unavailable):
            await gate.admit(record(unlimited=False), Hold("t", 1))


@in_virtual_time
async def test_rebuild_that_is_always_too_slow_ends_until_the_next_call() -> None:
    """It does not go on by itself when nobody waits for it any more."""
    begun: list[float] = []
    loop = asyncio.get_running_loop()

    async def lapse(_: str) -> bool:
        begun.append(loop.time())
        await asyncio.sleep(30)
        raise RebuildLapsed("too slow")

    gate = RateLimiter(FakeCounters(), lapse)
    assert not await gate.rebuild("demo")
    await asyncio.sleep(3600)
    assert len(begun) == MOST_LAPSES
    pauses = [later - earlier - 30 for earlier, later in pairwise(begun)]
    assert pauses == [LAPSE_PAUSE_SECONDS, 2 * LAPSE_PAUSE_SECONDS]
    assert not await gate.rebuild("demo")
    assert len(begun) == MOST_LAPSES + 1


@in_virtual_time
async def test_looks_at_the_rebuild_of_another_replica_grow_rarer() -> None:
    looks = 0

    async def leave_it(_: str) -> bool:
        nonlocal looks
        looks += 1
        return False

    counters = FakeCounters()
    gate = RateLimiter(counters, leave_it)
    waiting = asyncio.create_task(gate.rebuild("demo"))
    await asyncio.sleep(4)
    assert looks < 20
    token = await counters.begin_rebuild("demo")
    assert token is not None
    assert await counters.finish_rebuild("demo", token, Ledger(0))
    assert await waiting


async def test_account_without_a_rate_has_the_default_rate() -> None:
    gateway = Gateway(paid_rpm=7)
    assert rate_of(await gateway.create())[:2] == (7, 6)
    gateway.put_account("demo", requestsPerMinute=3)
    assert rate_of(await gateway.create())[:2] == (3, 1)


REJECTED = (Budget("key/a", requests_per_minute=1),)


def test_rejection_lasts_until_the_rate_is_free_and_a_minute_at_most() -> None:
    now = 100.0
    full = RecentRejections(lambda: now)
    full.note("short", REJECTED, 5)
    full.note("long", (), 3600)
    assert full.contains("short", REJECTED)
    assert not full.contains("short", ())
    now += 5
    assert not full.contains("short", REJECTED)
    assert full.contains("long", ())
    now += 55
    assert not full.contains("long", ())
    assert len(full) == 0


def test_oldest_rejections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_REJECTED", 3)
    full = RecentRejections(lambda: 0.0)
    for name in ("a", "b", "c", "a", "d"):
        full.note(name, (), 60)
    assert [name for name in "abcd" if full.contains(name, ())] == ["a", "c", "d"]
