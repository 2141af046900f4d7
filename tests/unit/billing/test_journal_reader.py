"""The journal, aggregated by several that are paused and killed: each call counts once (I7).

Meanwhile the account's ledger is read as a rebuild of the counters reads it: at any moment it is
the cost of the journal's calls.
"""

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import cycle
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gateway_core.api.usage import GatewayUsage
from gateway_core.billing import journal_store as callfolds
from gateway_core.billing.journal import (
    CallRecord,
    JournalDamaged,
    decode_object,
    encode_object,
    name_object,
    parse_name,
)
from gateway_core.billing.journal_store import JournalStore, aggregate_calls, divide_objects
from gateway_core.billing.ledger import read_ledger
from gateway_core.billing.usage_store import AggregationDeferred
from gateway_core.billing.windows import sum_window
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_operator.retention.objects import RetentionRules
from gateway_operator.retention.usage import DayClosing
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects
from tests.unit.billing.journal_harness import (
    LATER,
    NOW,
    PausedPort,
    SlowObjects,
    fold_round,
    make_record,
    store_object,
)

USAGES = GatewayUsage.plural


async def fold_always(kube: Any, store: Any) -> None:
    seen: dict[str, float] = {}
    while True:
        with suppress(AggregationDeferred, WriteConflict, ObjectNotFound):
            await fold_round(kube, store, last_seen=seen)
        await asyncio.sleep(0.03)


PAUSES = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.02, 0.5]), min_size=1, max_size=9)


@settings(phases=[Phase.generate], max_examples=25)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["p", "q", "r"]), st.integers(0, 99), st.sampled_from([NOW, LATER])
        ),
        min_size=1,
        max_size=12,
    ),
    folders=st.lists(PAUSES, min_size=1, max_size=3),
    kills=st.lists(st.tuples(st.sampled_from([0.01, 0.05, 0.5]), st.integers(0, 4)), max_size=4),
    marks=st.sampled_from([3, 256]),
)
@in_virtual_time
async def test_every_call_counts_once(
    calls: list[tuple[str, int, datetime]],
    folders: list[list[float]],
    kills: list[tuple[float, int]],
    marks: int,
) -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    expected: list[int] = []

    async def check() -> None:
        # what is stored while the ledger is read may be in it or not
        least = sum(expected)
        ledger = await read_ledger(kube, JournalStore(store), "demo")
        assert least == ledger.charged == sum(ledger.by_day.values())
        for subject in ("key/key-a", "guardrail/grd-x") if least else ():
            buckets = ledger.spent[subject]
            assert buckets.total == sum_window(buckets, "1d", LATER) == least

    def begin(pauses: list[float]) -> asyncio.Task[None]:
        clock = cycle(pauses)
        paused = PausedPort(kube, clock), PausedPort(store, clock)
        return asyncio.create_task(fold_always(*paused))

    running = [begin(pauses) for pauses in folders]
    sequences = dict.fromkeys("pqr", 0)
    with patch.object(callfolds, "MOST_JOURNALS", marks):
        for number, (process, micros, time) in enumerate(calls):
            sequences[process] += 1
            record = make_record(number, micros, time=time)
            await store_object(store, process, sequences[process], record)
            expected.append(micros)
            await check()
            await asyncio.sleep(0.02)
        for seconds, victim in kills:
            await asyncio.sleep(seconds)
            running[victim % len(running)].cancel()
            await check()
        for task in running:
            assert task.cancelled() or not task.done() or task.exception() is None
        for _ in range(12):
            await asyncio.sleep(0.3)
            await check()
        for task in running:
            task.cancel()
        seen: dict[str, float] = {}
        for _ in range(12):
            with suppress(AggregationDeferred):
                await fold_round(kube, store, last_seen=seen)
            await asyncio.sleep(1.1)
        await check()
    assert store.contents == {}
    status = [obj["status"] for obj in kube.list_objects(USAGES)]
    assert sum(s["chargedMicros"] for s in status) == sum(expected)
    assert sum(s["requests"] for s in status) == len(calls)
    assert sum(s["inputTokens"] for s in status) == 10 * len(calls)


@pytest.mark.parametrize("hidden", [{1}, {2}, {1, 2}, {2, 3}, {3}])
@in_virtual_time
async def test_object_missing_from_a_listing_is_not_skipped(hidden: set[int]) -> None:
    kube, store = FakeKubernetes(), SlowObjects()
    for number in range(1, 5):
        await store_object(store, "p", number, make_record(number))
    store.hidden = {name_object("p", number) for number in hidden}
    assert (await read_ledger(kube, JournalStore(store), "demo")).charged == 20
    await fold_round(kube, store, most=10)
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 20
    assert usage["status"]["journal"] == [{"process": "p", "sequence": 4}]
    assert store.contents == {}


@in_virtual_time
async def test_account_that_cannot_be_aggregated_delays_no_other() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    await store_object(store, "p", 1, make_record(1), make_record(2, account="other"))
    for part in divide_objects(await JournalStore(store).read_all()):
        if part.account == "demo":
            kube.order_faults("get", Fault(KubernetesUnavailable("away")))
            with pytest.raises(KubernetesUnavailable):
                await aggregate_calls(kube, JournalStore(store), part, lambda _: False, NOW)
        else:
            assert await aggregate_calls(kube, JournalStore(store), part, lambda _: False, NOW) == (
                1,
                set(),
            )
    await fold_round(kube, store)
    assert [o["status"]["requests"] for o in kube.list_objects(USAGES)] == [1, 1]


@in_virtual_time
async def test_closed_day_takes_no_call() -> None:
    """The day's sums are in the closing object already, and it is deleted next."""
    kube, store = FakeKubernetes(), FakeObjects()
    await store_object(store, "p", 1, make_record(1))
    await fold_round(kube, store)
    [usage] = kube.list_objects(USAGES)
    closed = await kube.patch_status(USAGES, usage, {"closed": True})
    await store_object(store, "p", 2, make_record(2))
    with pytest.raises(AggregationDeferred):
        await fold_round(kube, store)
    assert kube.list_objects(USAGES) == [closed]
    assert list(store.contents) == [name_object("p", 2)], "it waits for a day that is open"


@in_virtual_time
async def test_write_with_lost_response_adds_once() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    await store_object(store, "p", 1, make_record(1))
    kube.order_faults("patch_status", Fault(WriteOutcomeUnknown("?"), applied=True))
    await fold_round(kube, store)
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["requests"] == 1


@in_virtual_time
async def test_paused_aggregator_adds_nothing_after_its_mark_was_dropped() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    await store_object(store, "p", 1, make_record(1))
    old = JournalStore(store)
    [part] = divide_objects(await old.read_all())
    with patch.object(callfolds, "MOST_JOURNALS", 1):
        await fold_round(kube, store)
        await store_object(store, "q", 1, make_record(2))
        await fold_round(kube, store)
        [usage] = kube.list_objects(USAGES)
        assert usage["status"]["journal"] == [{"process": "q", "sequence": 1}]
        assert await aggregate_calls(kube, old, part, lambda _: True, NOW) == (0, set())
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["requests"] == 2


@in_virtual_time
async def test_aggregation_waits_for_room_for_marks() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    for process in ("p", "q"):
        await store_object(store, process, 1, make_record(1))
    with patch.object(callfolds, "MOST_JOURNALS", 1):
        [part] = divide_objects(await JournalStore(store).read_all())
        folded = await aggregate_calls(kube, JournalStore(store), part, lambda _: False, NOW)
        assert folded == (1, {"q"})
    assert (await read_ledger(kube, JournalStore(store), "demo")).charged == 10


@in_virtual_time
async def test_day_with_journal_records_is_not_closed() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    await store_object(store, "p", 1, make_record(1))
    [part] = divide_objects(await JournalStore(store).read_all())
    await aggregate_calls(kube, JournalStore(store), part, lambda _: False, NOW)
    closing = DayClosing(kube, store, RetentionRules(), lambda: NOW + timedelta(days=20))
    assert await closing.sweep() == 0
    await fold_round(kube, store)
    assert await closing.sweep() == 1
    assert (await read_ledger(kube, JournalStore(store), "demo")).charged == 5


def test_object_is_decoded_as_it_was_encoded() -> None:
    record, plain = make_record(1), CallRecord("call-b", "demo", NOW, "m", "s/a")
    data = encode_object("p", 7, [record, plain])
    key = name_object("p", 7)
    assert key == "journal/p/00000000000000000007.json"
    assert decode_object(key, data).records == (record, plain)
    assert parse_name(key) == ("p", 7)
    assert parse_name("journal/p/7.json") is None


@in_virtual_time
async def test_absurd_token_counts_are_capped() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    absurd = make_record(1, input_tokens=2**53, output_tokens=2**62)
    await store_object(store, "p", 1, absurd, make_record(2))
    await fold_round(kube, store)
    [usage] = kube.list_objects(USAGES)
    GatewayUsage.model_validate(usage)
    assert usage["status"]["requests"] == 2
    assert usage["status"]["inputTokens"] == 2**32 + 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"process":"p","sequence":8,"calls":[]}',
        b'{"process":"p","sequence":7,"calls":[{}]}',
        encode_object("p", 7, [make_record(1)]).replace(b'"micros":5', b'"micros":-5'),
        encode_object("p", 7, [make_record(1)]).replace(b'"micros":5', b'"micros":"5"'),
    ],
)
def test_damaged_object_is_reported(data: bytes) -> None:
    with pytest.raises(JournalDamaged):
        decode_object(name_object("p", 7), data)


@in_virtual_time
async def test_ledger_is_unavailable_while_the_journal_cannot_be_read() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    await store.put(name_object("p", 1), b"{}")
    with pytest.raises(KubernetesUnavailable, match="journal"):
        await read_ledger(kube, JournalStore(store), "demo")
    store.away = True
    with pytest.raises(KubernetesUnavailable, match="journal"):
        await read_ledger(kube, JournalStore(store), "demo")


@in_virtual_time
async def test_ledger_has_the_last_sequence_of_each_journal() -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    for number in (1, 2):
        await store_object(store, "p", number, make_record(number))
    await store_object(store, "q", 1, make_record(3, account="other"))
    await fold_round(kube, store)
    await store_object(store, "p", 3, make_record(4))
    await store_object(store, "r", 1, make_record(5, account="other"))
    ledger = await read_ledger(kube, JournalStore(store), "demo")
    assert ledger.journals == {"p": 3, "r": 1}
    assert ledger.charged == 15
