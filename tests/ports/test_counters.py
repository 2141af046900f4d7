"""What `ports.counters` promises, asked of the fake and of Redis alike."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.counters import (
    AdmissionAnswer,
    AdmissionCall,
    Budget,
    Hold,
    Ledger,
    Spending,
)
from gateway_core.redis.link import CountersStale
from tests.ports.counters_stores import CountersStore, name_account, rebuild

DAY = "2026-11-21"
AT = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
PER_EXAMPLE = settings(
    max_examples=40,
    deadline=None,
    # The store is shared by the examples; each has an account of its own.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def call(account: str, *, limit: int = 300) -> AdmissionCall:
    return AdmissionCall(account, limit, None, None)


def call_with_hold(
    account: str, task: str, micros: int, *, funds: int | None, limit: int = 100_000
) -> AdmissionCall:
    return AdmissionCall(account, limit, Hold(task, micros), funds)


class TestFreeRates:
    async def test_calls_beyond_the_limit_wait_until_a_slot_is_free(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        waits = await asyncio.gather(
            *(store.counters.count(account, "management", 50) for _ in range(80))
        )
        assert waits.count(0) == 50
        assert {wait for wait in waits if wait} <= {59, 60}
        store.advance(account, max(waits))
        assert await store.counters.count(account, "management", 50) == 0

    async def test_rates_accounts_and_paid_calls_do_not_share_a_window(
        self, store: CountersStore
    ) -> None:
        account, other = name_account(), name_account()
        assert await store.counters.count(account, "management", 1) == 0
        assert await store.counters.count(account, "management", 1) > 0
        assert await store.counters.count(account, "storage", 1) == 0
        assert await store.counters.count(other, "management", 1) == 0
        assert (await store.counters.admit(call(account, limit=1))).rate_exceeded is False


class TestLastUse:
    async def test_later_use_of_a_key_stays(self, store: CountersStore) -> None:
        account, other = name_account(), name_account()
        await store.counters.note_used(account, {"key-a": 1_800_000_000.5, "key-b": 1.0})
        await store.counters.note_used(account, {"key-a": 1_700_000_000.0, "key-b": 2.0})
        known = {"key-a": 1_800_000_000.5, "key-b": 2.0}
        assert await store.counters.read_used(account) == known
        assert await store.counters.read_used(account, ["key-b", "key-c"]) == {"key-b": 2.0}
        assert await store.counters.read_used(account, []) == {}
        assert await store.counters.read_used(other) == {}
        store.lose()
        assert await store.counters.read_used(account) == {}

    async def test_forgotten_account_is_stale_and_others_stay(self, store: CountersStore) -> None:
        account, other = name_account(), name_account()
        for name in (account, other):
            await rebuild(store.counters, name, Ledger(7, {"2026-11-21": 7}))
            await store.counters.note_used(name, {"key-a": 1.0})
            await store.counters.admit(call(name))
        await store.counters.forget_account(account)
        assert await store.counters.read_used(account) == {}
        with pytest.raises(CountersStale):
            await store.counters.read_spending(account, "")
        assert (await store.counters.admit(call(account))).rate.remaining == 299
        assert (await store.counters.read_spending(other, "")).charged == 7
        assert (await store.counters.admit(call(other))).rate.remaining == 298


class TestRate:
    async def test_concurrent_calls_are_counted_each_once(self, store: CountersStore) -> None:
        account = name_account()
        answers = await asyncio.gather(*(store.counters.admit(call(account)) for _ in range(400)))
        assert sum(not a.rate_exceeded for a in answers) == 300
        assert sorted(a.rate.remaining for a in answers if not a.rate_exceeded) == [*range(300)]

    async def test_first_call_leaves_the_window_after_60_seconds(
        self, store: CountersStore
    ) -> None:
        before = getattr(store.counters, "now", None) or time.time()
        answer = await store.counters.admit(call(name_account()))
        after = getattr(store.counters, "now", None) or time.time()
        assert before + 60 <= answer.rate.reset < after + 61
        assert answer.retry_after == 0

    async def test_lowered_limit_waits_for_as_many_as_are_over_it(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        for _ in range(4):
            await store.counters.admit(call(account, limit=4))
            store.advance(account, 10)
        rejected = await store.counters.admit(call(account, limit=2))
        assert rejected.rate_exceeded
        assert rejected.rate.remaining == 0
        store.advance(account, rejected.retry_after)
        assert not (await store.counters.admit(call(account, limit=2))).rate_exceeded


class TestMoney:
    async def test_money_is_stale_until_rebuilt_and_nothing_is_counted_of_who_asks(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        asked = call_with_hold(account, "t", 5, funds=10, limit=300)
        answer = await store.counters.admit(asked)
        assert (answer.stale, answer.held, answer.underfunded) == (True, False, False)
        assert answer.rate.remaining == 299
        unlimited = await store.counters.admit(call_with_hold(account, "t", 5, funds=None))
        assert (unlimited.stale, unlimited.held) == (True, False)
        assert (await store.counters.admit(call(account))).rate.remaining == 299
        for refused in (
            store.counters.hold(account, Hold("t", 5)),
            store.counters.settle(account, "t", 5, AT),
            store.counters.read_spending(account, DAY),
            store.counters.list_holds(account, 0),
        ):
            with pytest.raises(CountersStale):
                await refused

    async def test_call_without_a_hold_is_never_stale(self, store: CountersStore) -> None:
        answer = await store.counters.admit(call(name_account()))
        assert (answer.stale, answer.held, answer.underfunded) == (False, False, False)

    async def test_unlimited_account_holds_whatever_the_balance(self, store: CountersStore) -> None:
        account = name_account()
        await rebuild(store.counters, account, Ledger(charged=10**9))
        assert (await store.counters.admit(call_with_hold(account, "a", 50, funds=None))).held

    async def test_hold_asked_for_again_begins_anew_in_age(self, store: CountersStore) -> None:
        account = name_account()
        await rebuild(store.counters, account)
        asked = call_with_hold(account, "a", 100, funds=100)
        await store.counters.admit(asked)
        store.advance(account, 130)
        assert (await store.counters.admit(asked)).held
        assert await store.counters.list_holds(account, 100) == []

    @pytest.mark.parametrize(
        "other", [Hold("a", 100, ("key/a",)), Hold("a", 9, ("key/b",)), Hold("a", 100)]
    )
    async def test_hold_that_differs_is_anothers(self, store: CountersStore, other: Hold) -> None:
        """Two calls with one Idempotency-Key: none goes on with money held for the other."""
        account, counters = name_account(), store.counters
        await rebuild(counters, account)
        asked = AdmissionCall(account, 300, Hold("a", 9, ("key/a",)), funds=50)
        assert (await counters.admit(asked)).held
        store.advance(account, 130)
        for funds in (50, None):
            busy = await counters.admit(replace(asked, hold=other, funds=funds))
            assert (busy.busy, busy.held, busy.underfunded, busy.stale) == (True,) + (False,) * 3
        assert busy.rate.remaining == 298
        assert await counters.list_holds(account, 120) == [Hold("a", 9, ("key/a",))]
        assert (await counters.read_spending(account, DAY)).held == 9
        assert (await counters.admit(asked)).held

    async def test_record_puts_a_hold_right(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        subjects = ("key/a", "key/b", "guardrail/c")
        await rebuild(counters, account)
        await counters.hold(account, Hold("other", 1, subjects))
        await counters.hold(account, Hold("a", 9, ("key/a", "guardrail/c")))
        store.advance(account, 130)
        for right in (
            Hold("a", 40, ("key/b", "guardrail/c")),
            Hold("a", 0, ()),
            Hold("a", 40, ("key/b", "guardrail/c")),
        ):
            assert await counters.hold(account, right) is False
            assert right in await counters.list_holds(account, 120)
        states = await counters.read_budgets(account, [Budget(name) for name in subjects])
        assert [state.held for state in states] == [1, 41, 41]
        assert (await counters.read_spending(account, DAY)).held == 41
        assert await counters.settle(account, "a", 7, AT)
        states = await counters.read_budgets(account, [Budget(name) for name in subjects])
        assert [(state.used, state.held) for state in states] == [(0, 1), (7, 1), (7, 1)]
        assert await counters.read_spending(account, DAY) == Spending(7, 1, 7)

    async def test_charged_task_takes_no_hold_minutes_later_or_beside_others(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        await rebuild(store.counters, account)
        for task in ("task-a", "task-b"):
            await store.counters.hold(account, Hold(task, 30))
            await store.counters.settle(account, task, 20, AT)
            store.advance(account, 290)
        assert await store.counters.hold(account, Hold("task-a", 30)) is False
        assert await store.counters.hold(account, Hold("task-b", 30)) is False

    async def test_days_long_past_are_forgotten_and_the_total_is_not(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        days = {"2026-11-01": 5, "2026-11-12": 7, "2026-11-20": 9}
        await rebuild(store.counters, account, Ledger(charged=21, by_day=days))
        await store.counters.hold(account, Hold("a", 1))
        await store.counters.settle(account, "a", 1, AT)
        sums = [(await store.counters.read_spending(account, d)).charged_today for d in days]
        assert sums == [0, 7, 9]
        assert (await store.counters.read_spending(account, DAY)).charged == 22

    @pytest.mark.parametrize("micros", [-1, MAX_MICROS + 1])
    async def test_invalid_amount_is_refused(self, store: CountersStore, micros: int) -> None:
        account = name_account()
        await rebuild(store.counters, account)
        for refused in (
            store.counters.admit(call_with_hold(account, "a", micros, funds=5)),
            store.counters.hold(account, Hold("a", micros)),
            store.counters.settle(account, "a", micros, AT),
            store.counters.finish_rebuild(account, "t", Ledger(charged=micros)),
        ):
            with pytest.raises(ValueError, match="micro-dollars"):
                await refused

    async def test_great_amounts_are_exact(self, store: CountersStore) -> None:
        account = name_account()
        great = MAX_MICROS - 10
        await rebuild(store.counters, account, Ledger(great - 9, {DAY: great - 9}, {"x": 7}))
        assert (await store.counters.admit(call_with_hold(account, "a", 2, funds=great))).held
        full = await store.counters.admit(call_with_hold(account, "b", 1, funds=great))
        assert (full.underfunded, full.left) == (True, 0)
        full = await store.counters.admit(call_with_hold(account, "b", 9, funds=great + 8))
        assert (full.underfunded, full.left) == (True, 8)
        full = await store.counters.admit(call_with_hold(account, "b", 1, funds=great - 5))
        assert (full.underfunded, full.left) == (True, -5)
        assert await store.counters.settle(account, "a", 2, AT)
        spending = await store.counters.read_spending(account, DAY)
        assert spending == Spending(great - 7, 7, great - 7)

    async def test_200_concurrent_admissions_never_overspend(self, store: CountersStore) -> None:
        account = name_account()
        await rebuild(store.counters, account, Ledger(charged=7))

        async def try_hold(number: int) -> AdmissionAnswer:
            # Each task asks twice, as a raced Idempotency-Key does.
            task = f"t{number % 100}"
            return await store.counters.admit(call_with_hold(account, task, 10, funds=507))

        answers = await asyncio.gather(*(try_hold(number) for number in range(200)))
        held = {number % 100 for number, answer in enumerate(answers) if answer.held}
        assert len(held) == 50
        assert all(answer.held != answer.underfunded for answer in answers)
        assert await store.counters.read_spending(account, DAY) == Spending(7, 500, 0)

    async def test_old_holds_are_listed_with_their_age(self, store: CountersStore) -> None:
        account = name_account()
        await rebuild(store.counters, account)
        await store.counters.hold(account, Hold("old", 1))
        store.advance(account, 130)
        await store.counters.hold(account, Hold("new", 2))
        [old] = await store.counters.list_holds(account, 120)
        assert (old, 130 <= old.age < 160) == (Hold("old", 1), True)
        assert len(await store.counters.list_holds(account, 0)) == 2

    async def test_accounts_with_money_are_listed(self, store: CountersStore) -> None:
        accounts = sorted(name_account() for _ in range(3))
        for account in accounts:
            await rebuild(store.counters, account)
        await store.counters.admit(call(name_account()))
        listed = await store.counters.list_accounts()
        assert [a for a in listed if a in accounts] == accounts
        assert len(set(listed)) == len(listed)

    @PER_EXAMPLE
    @given(
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("admit"), st.integers(0, 5), st.integers(0, 60)),
                st.tuples(st.just("hold"), st.integers(0, 5), st.integers(0, 60)),
                st.tuples(st.just("settle"), st.integers(0, 5), st.integers(0, 60)),
            ),
            max_size=40,
        )
    )
    async def test_sums_are_those_of_the_members(
        self, store: CountersStore, steps: list[tuple[str, int, int]]
    ) -> None:
        account, funds = name_account(), 200
        await rebuild(store.counters, account)
        charged, holds, done = 0, dict[str, int](), set[str]()
        for kind, number, micros in steps:
            task = f"t{number}"
            known = task in holds or task in done
            if kind == "admit":
                busy = holds.get(task, micros) != micros
                fits = known or charged + sum(holds.values()) + micros <= funds
                answer = await store.counters.admit(
                    call_with_hold(account, task, micros, funds=funds)
                )
                assert (answer.held, answer.underfunded) == (fits and not busy, not fits)
                assert answer.busy == busy
                if fits and not known:
                    holds[task] = micros
            elif kind == "hold":
                assert await store.counters.hold(account, Hold(task, micros)) is not known
                if task not in done:
                    holds[task] = micros
            else:
                settled = await store.counters.settle(account, task, micros, AT)
                assert settled == (task in holds)
                if settled:
                    del holds[task]
                    charged += micros
                    done |= {task} if micros else set()
        expected = Spending(charged, sum(holds.values()), charged)
        assert await store.counters.read_spending(account, DAY) == expected
        listed = {hold.task: hold.micros for hold in await store.counters.list_holds(account, 0)}
        assert listed == holds


class TestRebuild:
    async def test_rebuild_puts_the_ledger_in_place(self, store: CountersStore) -> None:
        account = name_account()
        holds = {f"task-{number}": number for number in range(2500)}
        await rebuild(store.counters, account, Ledger(900, {DAY: 300}, holds))
        spending = await store.counters.read_spending(account, DAY)
        assert spending == Spending(900, sum(holds.values()), 300)
        listed = {hold.task: hold.micros for hold in await store.counters.list_holds(account, 0)}
        assert listed == holds
        assert await store.counters.list_holds(account, 60) == []

    async def test_abandoned_rebuild_lets_another_begin(self, store: CountersStore) -> None:
        account = name_account()
        token = await store.counters.begin_rebuild(account)
        assert token is not None
        await store.counters.abandon_rebuild(account, "another token")
        assert await store.counters.begin_rebuild(account) is None
        await store.counters.abandon_rebuild(account, token)
        assert not await store.counters.finish_rebuild(account, token, Ledger(5))
        await rebuild(store.counters, account, Ledger(6))

    async def test_only_one_replica_rebuilds_at_once(self, store: CountersStore) -> None:
        account = name_account()
        token = await store.counters.begin_rebuild(account)
        assert token is not None
        assert await store.counters.begin_rebuild(account) is None
        assert await store.counters.finish_rebuild(account, token, Ledger(1))
        assert await store.counters.begin_rebuild(account) is not None

    async def test_lapsed_token_changes_nothing(self, store: CountersStore) -> None:
        account = name_account()
        late = await store.counters.begin_rebuild(account)
        assert late is not None
        store.advance(account, 31)
        token = await store.counters.begin_rebuild(account)
        assert token is not None
        assert not await store.counters.finish_rebuild(account, late, Ledger(5, {}, {"a": 1}))
        assert await store.counters.finish_rebuild(account, token, Ledger(6))
        assert await store.counters.read_spending(account, DAY) == Spending(6, 0, 0)

    async def test_current_money_is_not_replaced(self, store: CountersStore) -> None:
        account = name_account()
        await rebuild(store.counters, account, Ledger(5))
        token = await store.counters.begin_rebuild(account)
        assert token is not None
        assert not await store.counters.finish_rebuild(account, token, Ledger(6, {}, {"a": 1}))
        assert await store.counters.read_spending(account, DAY) == Spending(5, 0, 0)

    async def test_stale_account_is_rebuilt_and_remembers_charged_tasks(
        self, store: CountersStore
    ) -> None:
        account, other = name_account(), name_account()
        for one in (account, other):
            await rebuild(store.counters, one, Ledger(5))
        for name in ("task-a", "call-a"):
            await store.counters.hold(account, Hold(name, 3))
            await store.counters.settle(account, name, 3, AT)
        await store.counters.hold(account, Hold("call-b", 4))
        await store.counters.mark_stale(account)
        await store.counters.mark_stale(account)
        await store.counters.mark_stale(name_account())
        with pytest.raises(CountersStale):
            await store.counters.read_spending(account, DAY)
        with pytest.raises(CountersStale):
            await store.counters.settle(account, "call-b", 4, AT)
        assert (await store.counters.admit(call_with_hold(account, "c", 1, funds=99))).stale
        await rebuild(store.counters, account, Ledger(12))
        assert await store.counters.read_spending(account, DAY) == Spending(12, 0, 0)
        assert not await store.counters.hold(account, Hold("task-a", 3))
        assert await store.counters.hold(account, Hold("call-a", 3))
        assert await store.counters.read_spending(other, DAY) == Spending(5, 0, 0)

    async def test_lost_account_is_stale_until_rebuilt_to_equal_figures(
        self, store: CountersStore
    ) -> None:
        account = name_account()
        ledger = Ledger(12, {DAY: 5}, {"a": 3, "b": 4})
        await rebuild(store.counters, account, ledger)
        before = await store.counters.read_spending(account, DAY)
        token = await store.counters.begin_rebuild(account)
        assert token is not None
        store.lose()
        assert (await store.counters.admit(call_with_hold(account, "c", 1, funds=99))).stale
        assert not await store.counters.finish_rebuild(account, token, ledger)
        await rebuild(store.counters, account, ledger)
        assert await store.counters.read_spending(account, DAY) == before
