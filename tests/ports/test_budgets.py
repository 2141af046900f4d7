"""Budgets as `ports.counters` promises them, asked of the fake and of Redis alike."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.limits import Window
from gateway_core.billing.counters import (
    AdmissionAnswer,
    AdmissionCall,
    Budget,
    BudgetState,
    Hold,
    Ledger,
    Spending,
)
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.windows import Buckets, find_reset, sum_window
from gateway_core.redis.link import CountersStale
from tests.ports.budget_calls import KEY, NOON, OTHER_KEY, PER_EXAMPLE, POOL, ask, start, tell
from tests.ports.counters_stores import CountersStore, name_account, rebuild

WINDOWS: list[Window] = ["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]
ALL = [Budget(KEY, None, window) for window in WINDOWS]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "Z" if "T" in text else text + "T00:00:00Z")


async def charge(
    counters: Counters, account: str, micros: int, moment: datetime, *subjects: str
) -> None:
    """A run under `subjects` that ended at `moment`."""
    task = f"charged-{moment.timestamp()}-{micros}-{'-'.join(subjects)}"
    assert await counters.hold(account, Hold(task, micros, subjects))
    assert await counters.settle(account, task, micros, moment)


class TestWindows:
    @pytest.mark.parametrize(
        ("window", "charged", "last", "gone"),
        [
            ("1h", "2026-11-21T12:00:00", "2026-11-21T13:00:59", "2026-11-21T13:01:00"),
            ("1h", "2026-11-21T23:59:59", "2026-11-22T00:59:59", "2026-11-22T01:00:00"),
            ("1d", "2026-11-21T12:59:59", "2026-11-22T12:59:59", "2026-11-22T13:00:00"),
            ("7d", "2026-11-21T12:00:00", "2026-11-28T12:59:59", "2026-11-28T13:00:00"),
            ("daily", "2026-11-21T12:00:00", "2026-11-21T23:59:59", "2026-11-22"),
            ("weekly", "2026-11-16", "2026-11-22T23:59:59", "2026-11-23"),
            ("weekly", "2026-12-31T10:00:00", "2027-01-03T23:59:59", "2027-01-04"),
            ("monthly", "2026-12-01", "2026-12-31T23:59:59", "2027-01-01"),
            ("monthly", "2028-02-03", "2028-02-29T23:59:59", "2028-03-01"),
        ],
    )
    async def test_charge_counts_to_the_last_second_of_its_window(
        self, store: CountersStore, window: Window, charged: str, last: str, gone: str
    ) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 30, window)
        store.set_clock(at(charged))
        await charge(counters, account, 30, at(charged), KEY)
        for moment in (at(charged), at(last)):
            store.set_clock(moment)
            refused = await counters.admit(ask(account, "t", 1, budget))
            reset = int(at(gone).timestamp())
            assert refused.exceeded == BudgetState(budget, used=30, held=0, reset=reset)
            assert (refused.held, refused.underfunded) == (False, False)
        store.set_clock(at(gone))
        assert (await counters.admit(ask(account, "t", 30, budget))).held
        refused = await counters.admit(ask(account, "u", 1, budget))
        assert refused.exceeded is not None
        assert (refused.exceeded.used, refused.exceeded.held) == (0, 30)

    async def test_lifetime_never_ends(self, store: CountersStore) -> None:
        account, budget = await start(store), Budget(KEY, 30, "lifetime")
        await charge(store.counters, account, 30, NOON, KEY)
        for days in (0, 40, 4000):
            store.set_clock(NOON + timedelta(days=days))
            refused = await store.counters.admit(ask(account, "t", 1, budget))
            assert refused.exceeded == BudgetState(budget, 30, 0, None)

    async def test_buckets_leave_one_after_the_other(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, None, "1h")
        for minute in (0, 1, 5):
            store.set_clock(NOON + timedelta(minutes=minute, seconds=30))
            await charge(counters, account, 10 + minute, store.now, KEY)
        seen = []
        for minute in range(59, 68):
            store.set_clock(NOON + timedelta(minutes=minute))
            [state] = await counters.read_budgets(account, [budget])
            assert state.reset is not None
            seen.append((minute, state.used, (state.reset - int(NOON.timestamp())) / 60))
        assert seen == [
            (59, 36, 61),
            (60, 36, 61),
            (61, 26, 62),
            (62, 15, 66),
            (63, 15, 66),
            (64, 15, 66),
            (65, 15, 66),
            (66, 0, 66),
            (67, 0, 67),
        ]

    async def test_late_settlement_counts_at_its_end_time(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        await counters.read_budgets(account, ALL)
        await charge(counters, account, 5, NOON - timedelta(hours=2), KEY)
        await charge(counters, account, 6, NOON - timedelta(days=1, hours=2), KEY)
        await charge(counters, account, 7, NOON - timedelta(days=300), KEY)
        states = await counters.read_budgets(account, ALL)
        assert [state.used for state in states] == [0, 5, 11, 5, 11, 11, 18]
        assert await counters.read_spending(account, "2026-11-20") == Spending(18, 0, 6)

    async def test_clock_that_is_a_little_behind_loses_nothing(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        await charge(counters, account, 5, NOON + timedelta(minutes=2), KEY)
        assert {s.used for s in await counters.read_budgets(account, ALL)} == {5}
        store.set_clock(NOON - timedelta(minutes=2))
        assert {s.used for s in await counters.read_budgets(account, ALL)} == {5}

    @PER_EXAMPLE
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from([0, 59, 60, 1800, 3600, 80_000, 86_400, 600_000]),
                st.sampled_from([0, 0, 30, 90, 7200, 90_000]),
                st.integers(0, 9),
                st.booleans(),
            ),
            max_size=14,
        )
    )
    async def test_every_window_tells_what_its_charges_come_to(
        self, store: CountersStore, steps: list[tuple[int, int, int, bool]]
    ) -> None:
        account, now = await start(store), NOON
        spent = Buckets(minutes := {}, hours := {}, days := {}, 0)
        for number, (passed, ago, micros, read) in enumerate(steps):
            now += timedelta(seconds=passed)
            store.set_clock(now)
            ended = now - timedelta(seconds=ago)
            hold = Hold(f"t{number}", 9, (KEY,))
            assert await store.counters.hold(account, hold)
            assert await store.counters.settle(account, hold.task, micros, ended)
            seconds = int(ended.timestamp())
            for parts, size in ((minutes, 60), (hours, 3600), (days, 86400)):
                parts[seconds // size] = parts.get(seconds // size, 0) + micros
            spent = replace(spent, total=spent.total + micros)
            if not read and number + 1 < len(steps):
                continue
            for state in await store.counters.read_budgets(account, ALL):
                window = state.budget.window
                assert window is not None
                assert state.used == sum_window(spent, window, now)
                reset = find_reset(spent, window, now)
                assert state.reset == (reset and int(reset.timestamp()))


class TestHolds:
    async def test_hold_counts_in_each_of_its_subjects(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        await counters.hold(account, Hold("a", 5, (KEY, POOL)))
        await counters.admit(ask(account, "b", 7, subjects=(OTHER_KEY, POOL)))
        await counters.hold(account, Hold("c", 9))
        held = await tell(counters, account, KEY, OTHER_KEY, POOL, "key/of-nobody")
        assert held == [(0, 5), (0, 7), (0, 12), (0, 0)]
        assert await counters.read_spending(account, "2026-11-21") == Spending(0, 21, 0)
        listed = sorted(await counters.list_holds(account, 0), key=lambda hold: hold.task)
        assert [hold.subjects for hold in listed] == [(KEY, POOL), (OTHER_KEY, POOL), ()]

    async def test_release_gives_it_back_everywhere(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(POOL, 5, "weekly")
        assert (await counters.admit(ask(account, "a", 5, budget))).held
        assert (await counters.admit(ask(account, "b", 5, budget))).exceeded
        assert await counters.settle(account, "a", 0, NOON)
        assert await tell(counters, account, POOL) == [(0, 0)]
        assert (await counters.admit(ask(account, "b", 5, budget))).held
        assert await counters.settle(account, "b", 8, NOON), "more than was held is charged too"
        assert await tell(counters, account, POOL) == [(8, 0)]

    async def test_hold_taken_again_counts_once(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 5, "1h")
        for _ in range(2):
            assert (await counters.admit(ask(account, "a", 5, budget))).held
            assert not await counters.hold(account, Hold("a", 5, (KEY,)))
        assert await tell(counters, account, KEY) == [(0, 5)]

    async def test_charged_hold_taken_again_counts_once(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 5, "1h")
        await counters.admit(ask(account, "a", 5, budget))
        await counters.settle(account, "a", 5, NOON)
        assert (await counters.admit(ask(account, "a", 5, budget))).held
        assert await tell(counters, account, KEY) == [(5, 0)]

    async def test_free_hold_leaves_no_trace(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        assert (await counters.admit(ask(account, "a", 0, Budget(KEY, 0, "1h")))).held
        assert await counters.settle(account, "a", 0, NOON)
        assert await tell(counters, account, KEY) == [(0, 0)]


class TestLimits:
    async def test_charged_and_held_stay_within_the_limit(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 100, "monthly")
        await charge(counters, account, 40, NOON, KEY)
        assert (await counters.admit(ask(account, "a", 50, budget))).held
        refused = await counters.admit(ask(account, "b", 11, budget))
        reset = int(at("2026-12-01").timestamp())
        assert refused.exceeded == BudgetState(budget, 40, 50, reset)
        assert (await counters.admit(ask(account, "c", 10, budget))).held
        assert await tell(counters, account, KEY) == [(40, 60)]

    async def test_limit_below_what_is_used_refuses_until_it_is_less(
        self, store: CountersStore
    ) -> None:
        account, counters = await start(store), store.counters
        await charge(counters, account, 80, NOON, KEY)
        lowered, raised = Budget(KEY, 50, "1h"), Budget(KEY, 81, "1h")
        refused = await counters.admit(ask(account, "a", 1, lowered))
        assert refused.exceeded is not None
        assert (refused.exceeded.used, refused.exceeded.budget) == (80, lowered)
        assert (await counters.admit(ask(account, "a", 1, raised))).held
        store.set_clock(NOON + timedelta(minutes=61))
        assert (await counters.admit(ask(account, "b", 49, lowered))).held

    async def test_another_window_is_counted_from_the_same_charges(
        self, store: CountersStore
    ) -> None:
        account, counters = await start(store), store.counters
        await charge(counters, account, 10, NOON - timedelta(hours=3), KEY)
        assert (await counters.admit(ask(account, "a", 5, Budget(KEY, 9, "1h")))).held
        assert (await counters.admit(ask(account, "b", 5, Budget(KEY, 19, "daily")))).exceeded

    @pytest.mark.parametrize("short", [0, 1, 2])
    async def test_all_budgets_hold_or_none(self, store: CountersStore, short: int) -> None:
        account, counters = await start(store), store.counters
        names = (KEY, POOL, "guardrail/grd-b")
        budgets = [Budget(name, 10, window) for name, window in zip(names, WINDOWS, strict=False)]
        budgets[short] = replace(budgets[short], limit=9)
        refused = await counters.admit(ask(account, "a", 10, *budgets))
        assert refused.exceeded is not None
        assert refused.exceeded.budget == budgets[short]
        assert await tell(counters, account, *names) == [(0, 0)] * 3
        assert await counters.list_holds(account, 0) == []
        assert (await counters.admit(ask(account, "a", 9, *budgets))).held
        assert await tell(counters, account, *names) == [(0, 9)] * 3

    async def test_first_that_is_exceeded_is_named(self, store: CountersStore) -> None:
        account = await start(store)
        budgets = (Budget(KEY, 9, "1h"), Budget(POOL, 4, "1d"), Budget("guardrail/x", 3, "7d"))
        refused = await store.counters.admit(ask(account, "a", 5, *budgets))
        assert refused.exceeded is not None
        assert refused.exceeded.budget == budgets[1]

    async def test_budget_is_named_before_the_balance(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 5, "1h")
        both = await counters.admit(ask(account, "a", 6, budget, funds=5))
        assert both.exceeded is not None
        assert not both.underfunded
        poor = await counters.admit(ask(account, "a", 5, budget, funds=4))
        assert (poor.exceeded, poor.underfunded, poor.held) == (None, True, False)
        assert await tell(counters, account, KEY) == [(0, 0)]

    async def test_budget_without_a_limit_refuses_nothing(self, store: CountersStore) -> None:
        account = await start(store)
        free = Budget(KEY, requests_per_minute=10)
        assert (await store.counters.admit(ask(account, "a", 10**12, free))).held

    async def test_limits_hold_on_an_unlimited_account_and_not_without_a_hold(
        self, store: CountersStore
    ) -> None:
        account, budget = await start(store), Budget(KEY, 0, "1h")
        assert (await store.counters.admit(ask(account, "a", 1, budget, funds=None))).exceeded
        only_counted = AdmissionCall(account, 9, None, None, budgets=(budget,))
        assert (await store.counters.admit(only_counted)).exceeded is None

    async def test_great_amounts_are_exact(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        great = 2**53 - 10
        budget = Budget(KEY, great, "weekly")
        await charge(counters, account, great - 3, NOON, KEY)
        assert (await counters.admit(ask(account, "a", 2, budget))).held
        refused = await counters.admit(ask(account, "b", 2, budget))
        assert refused.exceeded is not None
        assert (refused.exceeded.used, refused.exceeded.held) == (great - 3, 2)
        assert (await counters.admit(ask(account, "c", 1, budget))).held

    async def test_200_concurrent_calls_never_overspend_a_key_or_a_pool(
        self, store: CountersStore
    ) -> None:
        account, counters = await start(store), store.counters
        pool = Budget(POOL, 500, "7d")

        async def call(number: int) -> AdmissionAnswer:
            key = Budget(KEY if number % 2 else OTHER_KEY, 300, "1h")
            return await counters.admit(ask(account, f"t{number}", 10, key, pool))

        answers = await asyncio.gather(*(call(number) for number in range(200)))
        assert sum(answer.held for answer in answers) == 50
        assert all(answer.held != (answer.exceeded is not None) for answer in answers)
        one, other, both = await tell(counters, account, KEY, OTHER_KEY, POOL)
        assert both == (0, 500)
        assert one[1] + other[1] == 500
        assert max(one[1], other[1]) <= 300


class TestRebuild:
    async def test_budgets_are_stale_with_the_money(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        with pytest.raises(CountersStale):
            await counters.read_budgets(account, ALL)
        answer = await counters.admit(ask(account, "a", 1, Budget(KEY, 0, "1h")))
        assert (answer.stale, answer.exceeded, answer.held) == (True, None, False)

    async def test_figures_are_equal_before_and_after(self, store: CountersStore) -> None:
        """Those of every window, now and as time goes on."""
        account, counters = await start(store), store.counters
        charges = [
            (NOON - timedelta(minutes=3), 1),
            (NOON - timedelta(minutes=50), 20),
            (NOON - timedelta(hours=5), 300),
            (NOON - timedelta(days=2), 4000),
            (NOON - timedelta(days=15), 50_000),
            (NOON - timedelta(days=400), 600_000),
        ]
        for moment, micros in charges:
            store.set_clock(moment)
            await charge(counters, account, micros, moment, KEY, POOL)
        await counters.hold(account, Hold("open", 7, (KEY,)))
        later = [NOON + timedelta(minutes=minute) for minute in (0, 10, 60, 300, 3000, 9000)]
        asked = [*ALL, *(replace(budget, subject=POOL) for budget in ALL)]

        async def tell_all() -> list[list[BudgetState]]:
            states = []
            for moment in later:
                store.set_clock(moment)
                states.append(await counters.read_budgets(account, asked))
            store.set_clock(NOON)
            return states

        before = await tell_all()
        assert [s.used for s in before[0][:7]] == [21, 321, 4321, 321, 4321, 54_321, 654_321]
        buckets = Buckets(
            {int(m.timestamp()) // 60: micros for m, micros in charges[:2]},
            {int(m.timestamp()) // 3600: 0 for m, _ in charges[:4]}
            | {int(m.timestamp()) // 3600: micros for m, micros in charges[2:4]}
            | {int(charges[0][0].timestamp()) // 3600: 21},
            {int(m.timestamp()) // 86400: micros for m, micros in charges[3:5]}
            | {int(charges[0][0].timestamp()) // 86400: 321},
            654_321,
        )
        ledger = Ledger(
            654_321,
            holds={"open": 7},
            subjects={"open": (KEY,)},
            spent={KEY: buckets, POOL: buckets},
        )
        for _ in range(2):
            store.lose()
            await rebuild(counters, account, ledger)
            assert await tell_all() == before
        assert await counters.settle(account, "open", 6, NOON)
        assert await tell(counters, account, KEY, POOL) == [(654_327, 0), (654_321, 0)]

    async def test_many_subjects_are_put_back(self, store: CountersStore) -> None:
        number = int(NOON.timestamp()) // 86400
        spent = {f"key/key-{n}": Buckets(days={number: n}, total=n) for n in range(1500)}
        holds = {f"t{n}": 2 for n in range(1500)}
        subjects = {f"t{n}": (f"key/key-{n}", POOL) for n in range(1500)}
        ledger = Ledger(1, holds=holds, subjects=subjects, spent=spent)
        account = await start(store, ledger)
        asked = [Budget(subject, None, "daily") for subject in (*spent, POOL)]
        states = await store.counters.read_budgets(account, asked)
        assert [(s.used, s.held) for s in states] == [(n, 2) for n in range(1500)] + [(0, 3000)]

    async def test_invalid_amount_is_refused(self, store: CountersStore) -> None:
        account = name_account()
        for spent in (Buckets(total=-1), Buckets(minutes={1: -1}, total=1)):
            token = await store.counters.begin_rebuild(account)
            assert token is not None
            ledger = Ledger(0, spent={KEY: spent})
            with pytest.raises(ValueError, match="micro-dollars"):
                await store.counters.finish_rebuild(account, token, ledger)
            await store.counters.abandon_rebuild(account, token)
