"""Calls a minute of keys and guardrails beside the account's, asked of the fake and of Redis."""

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gateway_core.billing.counters import AdmissionCall, Budget
from tests.ports.budget_calls import KEY, OTHER_KEY, PER_EXAMPLE, POOL, ask, start, tell
from tests.ports.counters_stores import CountersStore, name_account


def count(account: str, *limits: tuple[str, int], limit: int = 300) -> AdmissionCall:
    """A call that only counts, with the budgets' calls a minute."""
    budgets = tuple(Budget(subject, requests_per_minute=rpm) for subject, rpm in limits)
    return AdmissionCall(account, limit, None, None, budgets=budgets)


class TestRates:
    async def test_budgets_rate_is_exact(self, store: CountersStore) -> None:
        account = name_account()
        answers = [await store.counters.admit(count(account, (KEY, 5))) for _ in range(7)]
        assert [a.rate_exceeded for a in answers] == [False] * 5 + [True] * 2
        assert [a.rate.remaining for a in answers] == [4, 3, 2, 1, 0, 0, 0]
        assert {a.rate.limit for a in answers} == {5}

    async def test_tightest_is_returned(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        first = await counters.admit(count(account, (KEY, 5), limit=4))
        assert (first.rate.limit, first.rate.remaining) == (4, 3)
        second = await counters.admit(count(account, (POOL, 2), limit=4))
        assert (second.rate.limit, second.rate.remaining) == (2, 1)
        third = await counters.admit(count(account, (KEY, 5), (POOL, 9), limit=4))
        assert (third.rate.limit, third.rate.remaining) == (4, 1)

    async def test_latest_free_slot_decides_among_equal_rates(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        await counters.admit(count(account, limit=2))
        store.advance(account, 30)
        answer = await counters.admit(count(account, (KEY, 1), limit=2))
        assert answer.rate.remaining == 0
        assert answer.rate.limit == 1
        rejected = await counters.admit(count(account, (KEY, 1), limit=2))
        assert rejected.rate_exceeded
        assert (rejected.rate.limit, rejected.rate.reset) == (1, answer.rate.reset)
        assert 58 <= rejected.retry_after <= 60

    async def test_rejected_call_counts_nowhere(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        await counters.admit(count(account, (KEY, 1)))
        for _ in range(3):
            assert (await counters.admit(count(account, (POOL, 9), (KEY, 1)))).rate_exceeded
        plain = await counters.admit(count(account, (POOL, 9)))
        assert (plain.rate.limit, plain.rate.remaining) == (9, 8)
        assert (await counters.admit(count(account))).rate.remaining == 297
        for _ in range(2):
            assert (await counters.admit(count(account, (OTHER_KEY, 9), limit=3))).rate_exceeded
        other = await counters.admit(count(account, (OTHER_KEY, 9)))
        assert (other.rate.limit, other.rate.remaining) == (9, 8)

    async def test_call_over_the_rate_holds_nothing(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 9, "1h", requests_per_minute=1)
        assert (await counters.admit(ask(account, "a", 1, budget))).held
        rejected = await counters.admit(ask(account, "b", 1, budget))
        assert rejected.rate_exceeded
        assert (rejected.held, rejected.exceeded) == (False, None)
        assert await tell(counters, account, KEY) == [(0, 1)]

    async def test_call_past_the_rates_counts_in_none(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 9, "1h", requests_per_minute=1)
        await counters.admit(ask(account, "a", 1, budget))
        again = replace(ask(account, "b", 1, budget), rate="skip")
        answer = await counters.admit(again)
        assert (answer.held, answer.rate_exceeded) == (True, False)
        store.advance(account, 61)
        assert not (await counters.admit(ask(account, "c", 1, budget))).rate_exceeded

    async def test_call_that_is_refused_anyway_only_looks(self, store: CountersStore) -> None:
        account, counters = name_account(), store.counters
        refused = replace(count(account, (KEY, 2)), rate="look")
        assert [(await counters.admit(refused)).rate.remaining for _ in range(3)] == [2, 2, 2]
        await counters.admit(count(account, (KEY, 2)))
        assert (await counters.admit(refused)).rate.remaining == 1
        await counters.admit(count(account, (KEY, 2)))
        rejected = await counters.admit(refused)
        assert rejected.rate_exceeded
        assert rejected.retry_after > 0

    async def test_refused_call_counts_in_no_budget(self, store: CountersStore) -> None:
        account, counters = await start(store), store.counters
        budget = Budget(KEY, 9, "1h", requests_per_minute=2)
        await counters.admit(ask(account, "a", 9, budget))
        for _ in range(3):
            exceeded = await counters.admit(ask(account, "b", 1, budget))
            assert (exceeded.exceeded is None, exceeded.rate_exceeded) == (False, False)
        assert (await counters.admit(count(account, (KEY, 2)))).rate.remaining == 0
        assert (await counters.admit(count(account, limit=300))).rate.remaining == 297

    async def test_pool_counts_the_calls_of_its_keys(self, store: CountersStore) -> None:
        account = name_account()
        answers = await asyncio.gather(
            *(
                store.counters.admit(count(account, (f"key/{n % 2}", 9), (POOL, 12)))
                for n in range(40)
            )
        )
        assert sum(not a.rate_exceeded for a in answers) == 12

    @PER_EXAMPLE
    @given(
        limits=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
        # Steps of 10 s and a window of 60: no machine is so slow that it blurs the edges.
        steps=st.lists(
            st.tuples(st.sampled_from([0, 0, 10, 20, 50, 60]), st.sampled_from([0, 1, 2, 3])),
            max_size=20,
        ),
    )
    async def test_no_trailing_minute_holds_more_than_any_limit(
        self,
        store: CountersStore,
        limits: tuple[int, int, int],
        steps: list[tuple[int, int]],
    ) -> None:
        account, now = name_account(), 0
        logs: dict[str, list[int]] = {"": [], KEY: [], POOL: []}
        caps = dict(zip(logs, limits, strict=True))
        for step, chosen in steps:
            store.advance(account, step)
            now += step
            # chosen's bits say which budgets the call has
            named = [name for bit, name in ((1, KEY), (2, POOL)) if chosen & bit]
            asked = count(account, *((name, caps[name]) for name in named), limit=caps[""])
            logs = {name: [at for at in log if at > now - 60] for name, log in logs.items()}
            counted = ["", *named]
            full = [name for name in counted if len(logs[name]) >= caps[name]]
            answer = await store.counters.admit(asked)
            assert answer.rate_exceeded == bool(full)
            if full:
                wait = max(logs[name][-caps[name]] + 60 - now for name in full)
                assert wait - 9 <= answer.retry_after <= wait
            else:
                for name in counted:
                    logs[name].append(now)
                left = min(caps[name] - len(logs[name]) for name in counted)
                assert answer.rate.remaining == left
