"""Promises of `Counters.lease` about holds of groups of calls, asked of the fake and of Redis."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.billing.counters import (
    FAR,
    LEAST_SLOTS,
    AdmissionCall,
    Budget,
    CallCharge,
    Hold,
    LeaseCall,
    Ledger,
)
from gateway_core.redis.link import CountersStale
from tests.ports.counters_stores import CountersStore, name_account, rebuild

AT = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
DAY = "2026-11-21"
LIMIT = 100_000
FIRST = Hold("call-p-lease-1", 0, ("key/a",))
SECOND = Hold("call-p-lease-2", 30, ("key/a",))


def ask(account: str, **changes: Any) -> LeaseCall:
    base: dict[str, Any] = {"hold": FIRST, "spare": 1000, "slots": 50, "seconds": 0.4}
    return LeaseCall(account, LIMIT, "p", **{**base, **changes})


async def open_account(store: CountersStore, ledger: Ledger | None = None) -> str:
    account = name_account()
    await rebuild(store.counters, account, ledger or Ledger(0))
    return account


async def read_remaining(store: CountersStore, account: str) -> int:
    """Calls that the account's rate has left, without counting one."""
    answer = await store.counters.admit(AdmissionCall(account, LIMIT, None, None, "look"))
    return answer.rate.remaining


async def read_sums(store: CountersStore, account: str) -> tuple[int, int]:
    spending = await store.counters.read_spending(account, DAY)
    return spending.charged, spending.held


async def test_far_from_every_limit_all_that_is_wanted_is_granted(store: CountersStore) -> None:
    account = await open_account(store)
    answer = await store.counters.lease(ask(account))
    assert (answer.ended, answer.spare, answer.slots) == ("gone", 1000, 50)
    assert (answer.rate.limit, answer.rate.remaining) == (LIMIT, LIMIT - 50)
    assert await read_sums(store, account) == (0, 1000)
    assert await read_remaining(store, account) == LIMIT - 50


@pytest.mark.parametrize(
    "limits",
    [
        {"funds": 4000},
        {"budgets": (Budget("key/a", 4000, "daily"),)},
        {"funds": 10_000, "budgets": (Budget("key/a", None, None, 9), Budget("key/b", 90_000))},
        {"requests_per_minute": FAR * LEAST_SLOTS - 1},
    ],
)
async def test_near_any_limit_nothing_is_granted(
    store: CountersStore, limits: dict[str, Any]
) -> None:
    account = await open_account(store)
    answer = await store.counters.lease(replace(ask(account, spare=2001), **limits))
    assert (answer.spare, answer.slots) == (0, 0)
    assert await read_sums(store, account) == (0, 0)
    assert await read_remaining(store, account) == LIMIT


async def test_eighth_of_what_is_left_is_the_most(store: CountersStore) -> None:
    account = await open_account(store, Ledger(1000, {DAY: 1000}))
    await store.counters.hold(account, Hold("task-a", 500, ("key/a",)))
    budget = Budget("key/a", 8000, "daily", 80_000)
    asked = ask(account, funds=9500, budgets=(budget,), spare=3000, slots=20_000)
    answer = await store.counters.lease(asked)
    # 8000 - 500 of the key, which is less than 9500 - 1500 of the account
    assert (answer.spare, answer.slots) == (7500 // FAR, 80_000 // FAR)


async def test_calls_under_way_are_held_whatever_the_limits(store: CountersStore) -> None:
    account = await open_account(store)
    answer = await store.counters.lease(ask(account, hold=SECOND, funds=1))
    assert (answer.spare, answer.slots) == (0, 0)
    assert await store.counters.list_holds(account, 0) == [SECOND]


async def test_renewal_charges_returns_slots_and_moves_the_hold(store: CountersStore) -> None:
    account = await open_account(store)
    first = await store.counters.lease(ask(account))
    charges = (CallCharge(AT, 7), CallCharge(AT, 5, 3))
    renewal = ask(account, ended=FIRST.task, charges=charges, hold=SECOND, spare=0, slots=0)
    renewal = replace(renewal, stamp=first.stamp, unused=20)
    second = await store.counters.lease(renewal)
    assert (second.ended, second.spare, second.slots) == ("held", 0, 0)
    assert await read_sums(store, account) == (12, 30)
    assert await store.counters.list_holds(account, 0) == [SECOND]
    assert await read_remaining(store, account) == LIMIT - 30
    [budget] = await store.counters.read_budgets(account, [Budget("key/a")])
    assert (budget.used, budget.held) == (12, 30)


async def test_ended_hold_is_charged_once(store: CountersStore) -> None:
    account = await open_account(store)
    await store.counters.lease(ask(account))
    last = ask(account, ended=FIRST.task, charges=(CallCharge(AT, 7),), hold=None, slots=0)
    assert (await store.counters.lease(last)).ended == "held"
    assert (await store.counters.lease(last)).ended == "charged"
    assert not await store.counters.settle_calls(account, FIRST.task, "p", last.charges)
    assert (await store.counters.keep(account, "p", [FIRST.task])).states == ("charged",)
    assert await read_sums(store, account) == (7, 0)


async def test_without_a_hold_nothing_is_charged(store: CountersStore) -> None:
    account = await open_account(store)
    last = ask(account, ended="call-p-lease-0", charges=(CallCharge(AT, 7),), hold=None)
    assert (await store.counters.lease(last)).ended == "gone"
    assert await read_sums(store, account) == (0, 0)


async def test_charge_counted_by_a_rebuild_is_not_repeated(store: CountersStore) -> None:
    account = await open_account(store, Ledger(5, {DAY: 5}, journals={"p": 4}))
    await store.counters.hold(account, Hold(FIRST.task, 100, ("key/a",)))
    charges = (CallCharge(AT, 5, 4), CallCharge(AT, 7, 5), CallCharge(AT, 9))
    assert await store.counters.settle_calls(account, FIRST.task, "p", charges)
    assert await read_sums(store, account) == (21, 0)


async def test_charges_are_in_the_minute_of_their_calls(store: CountersStore) -> None:
    account = await open_account(store)
    store.set_clock(AT.replace(hour=13, minute=30))
    await store.counters.lease(ask(account))
    charges = (CallCharge(AT.replace(minute=29), 7), CallCharge(AT, 5))
    last = ask(account, ended=FIRST.task, charges=charges, hold=None, slots=0)
    await store.counters.lease(last)
    [hour] = await store.counters.read_budgets(account, [Budget("key/a", 100, "1h")])
    [day] = await store.counters.read_budgets(account, [Budget("key/a", 100, "1d")])
    assert (hour.used, day.used) == (5, 12)


async def test_slots_leave_the_rate_a_minute_after_the_lease(store: CountersStore) -> None:
    account = await open_account(store)
    await store.counters.lease(ask(account, slots=2500, seconds=3))
    store.advance(account, 61)
    assert await read_remaining(store, account) == LIMIT - 2500
    store.advance(account, 3)
    assert await read_remaining(store, account) == LIMIT


async def test_calls_that_are_counted_during_a_lease_stay_in_order(store: CountersStore) -> None:
    account = await open_account(store)
    first = await store.counters.lease(ask(account, seconds=3))
    for _ in range(5):
        await store.counters.admit(AdmissionCall(account, LIMIT, None, None))
    last = ask(account, ended=FIRST.task, hold=None, stamp=first.stamp, unused=50)
    await store.counters.lease(last)
    assert await read_remaining(store, account) == LIMIT - 5
    store.advance(account, 64)
    assert await read_remaining(store, account) == LIMIT


async def test_calls_of_no_cost_are_leased_too(store: CountersStore) -> None:
    account = await open_account(store)
    answer = await store.counters.lease(ask(account, spare=0, funds=0))
    assert (answer.spare, answer.slots) == (0, 50)
    assert await store.counters.list_holds(account, 0) == []


async def test_lease_of_lost_money_is_stale(store: CountersStore) -> None:
    account = await open_account(store)
    await store.counters.lease(ask(account))
    store.lose()
    with pytest.raises(CountersStale):
        await store.counters.lease(ask(account, ended=FIRST.task, hold=SECOND))
