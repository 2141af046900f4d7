"""What `Counters.keep` promises of calls that leave no objects, asked of the fake and of Redis."""

from datetime import UTC, datetime

import pytest

from gateway_core.billing.counters import Hold, KeptCalls, Ledger
from gateway_core.redis.link import CountersStale
from tests.ports.counters_stores import CountersStore, name_account, rebuild

AT = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


async def test_state_of_each_call_is_returned(store: CountersStore) -> None:
    account = name_account()
    await rebuild(store.counters, account, Ledger(0))
    await store.counters.hold(account, Hold("call-held", 5, ("key/a",)))
    await store.counters.hold(account, Hold("call-charged", 5))
    await store.counters.settle(account, "call-charged", 3, AT)
    kept = await store.counters.keep(account, "p", ["call-gone", "call-held", "call-charged"])
    assert kept == KeptCalls(("gone", "held", "charged"), 0)
    assert await store.counters.keep(account, "p", []) == KeptCalls((), 0)


async def test_kept_hold_is_young_again_and_as_it_was(store: CountersStore) -> None:
    account = name_account()
    await rebuild(store.counters, account, Ledger(0))
    await store.counters.hold(account, Hold("call-a", 5, ("key/a", "guardrail/b")))
    store.advance(account, 100)
    await store.counters.keep(account, "p", ["call-a"])
    assert await store.counters.list_holds(account, 60) == []
    store.advance(account, 100)
    assert await store.counters.list_holds(account, 60) == [
        Hold("call-a", 5, ("key/a", "guardrail/b"))
    ]


async def test_charge_is_remembered_as_long_as_it_is_asked_for(store: CountersStore) -> None:
    account = name_account()
    await rebuild(store.counters, account, Ledger(0))
    await store.counters.hold(account, Hold("call-a", 5))
    await store.counters.settle(account, "call-a", 3, AT)
    for _ in range(3):
        store.advance(account, 400)
        assert (await store.counters.keep(account, "p", ["call-a"])).states == ("charged",)
    assert not await store.counters.hold(account, Hold("call-a", 5))


async def test_rebuild_tells_how_far_it_found_each_journal(store: CountersStore) -> None:
    account = name_account()
    ledger = Ledger(9, {"2026-11-21": 9}, journals={"p": 7, "q": 2})
    await rebuild(store.counters, account, ledger)
    assert (await store.counters.keep(account, "p", [])).counted == 7
    assert (await store.counters.keep(account, "r", [])).counted == 0
    await store.counters.hold(account, Hold("call-a", 5))
    store.lose()
    with pytest.raises(CountersStale):
        await store.counters.keep(account, "p", ["call-a"])
    await rebuild(store.counters, account, Ledger(9, journals={"p": 8}))
    assert await store.counters.keep(account, "p", ["call-a"]) == KeptCalls(("gone",), 8)
