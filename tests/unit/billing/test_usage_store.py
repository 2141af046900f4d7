"""Aggregation by several owners that are paused and killed anywhere: each charge counts once (I7).

Meanwhile the account's ledger is read as a rebuild of the counters reads it: at any moment it is
the price of the ended tasks.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api.ids import ACCOUNT_LABEL
from gateway_core.api.resource import Object
from gateway_core.api.usage import MOST_PENDING, GatewayUsage
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import read_ledger
from gateway_core.billing.usage import list_pending
from gateway_core.billing.usage_store import AggregationDeferred, aggregate_runs, is_aggregated
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_operator.retention.objects import RetentionRules
from gateway_operator.retention.usage import DayClosing
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects
from tests.shares import IS_WHOLE
from tests.unit.billing.journal_harness import PausedPort
from tests.unit.billing.usage_harness import DAY, NOW, TASKS, mark, put_task


async def read_charged(kube: FakeKubernetes) -> int:
    return (await read_ledger(kube, JournalStore(FakeObjects()), "demo")).charged


async def close_all(kube: Any, tasks: list[Object], batch: int, *, remove: bool) -> None:
    """One owner's work on tasks that he believes to be his, as he saw them once."""
    marked: set[str] = set()
    for start in range(0, len(tasks), batch):
        part = tasks[start : start + batch]
        while True:
            with suppress(AggregationDeferred):
                await aggregate_runs(kube, "demo", DAY, part, marked, NOW)
                break
            await asyncio.sleep(1)
        for task in part:
            with suppress(ObjectNotFound):
                await mark(kube, task)
            marked.add(task["metadata"]["uid"])
            if remove:
                await kube.delete(TASKS, task["metadata"]["name"])


async def move_days(kube: Any, store: FakeObjects) -> None:
    """The janitor of ten days later."""
    closing = DayClosing(kube, store, RetentionRules(), lambda: NOW + timedelta(days=10))
    with suppress(WriteConflict, ObjectNotFound):
        await closing.sweep()


PAUSES = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.02, 0.5]), min_size=1, max_size=12)


@settings(max_examples=40 if IS_WHOLE else 20)
@given(
    prices=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    owners=st.lists(st.tuples(PAUSES, st.integers(1, 4), st.booleans()), min_size=1, max_size=3),
    janitors=st.lists(PAUSES, max_size=2),
    kills=st.lists(st.tuples(st.sampled_from([0.01, 0.05, 0.5]), st.integers(0, 4))),
)
@in_virtual_time
async def test_every_charge_counts_once(
    prices: list[int],
    owners: list[tuple[list[float], int, bool]],
    janitors: list[list[float]],
    kills: list[tuple[float, int]],
) -> None:
    kube, store = FakeKubernetes(), FakeObjects()
    seen = [put_task(kube, number, price) for number, price in enumerate(prices)]
    expected = sum(prices)

    async def check() -> None:
        ledger = await read_ledger(kube, JournalStore(FakeObjects()), "demo")
        assert ledger.charged == expected
        assert not ledger.holds

    def begin(pauses: list[float], batch: int, remove: bool) -> asyncio.Task[None]:
        paused = PausedPort(kube, cycle(pauses))
        return asyncio.create_task(close_all(paused, seen, batch, remove=remove))

    running = [begin(*owner) for owner in owners]
    running += [
        asyncio.create_task(move_days(PausedPort(kube, cycle(pauses)), store))
        for pauses in janitors
    ]
    for seconds, victim in kills:
        await asyncio.sleep(seconds)
        await check()
        running[victim % len(running)].cancel()
    rounds = 0
    while any(not task.done() for task in running):
        await check()
        await asyncio.sleep(0.02)
        rounds += 1
        if janitors and rounds % 1000 == 0:
            # a day that a janitor left closed when he was killed is moved by his successor
            await move_days(kube, store)
    for task in running:
        assert task.cancelled() or task.exception() is None

    # whoever is left finishes the work, and the days go to the sum of past days
    if janitors:
        await move_days(kube, store)
    await close_all(kube, seen, 2, remove=True)
    await check()
    for _ in range(2):
        await move_days(kube, store)
    await check()
    assert kube.list_objects(TASKS) == []
    [before] = kube.list_objects(GatewayUsage.plural)
    assert before["metadata"]["name"] == "demo-before"
    assert before["status"]["chargedMicros"] == expected
    assert before["status"]["requests"] == len(prices)


@in_virtual_time
async def test_paused_owner_that_resumes_adds_nothing() -> None:
    kube = FakeKubernetes()
    seen = [put_task(kube, number, 5) for number in range(3)]
    # he has read the usage object, and is stopped with his write in hand
    waking = PausedPort(kube, cycle([0.0, 0.0, 0.0, 0.0, 100.0, 0.0]))
    old = asyncio.create_task(close_all(waking, seen, 3, remove=False))
    await asyncio.sleep(1)
    await close_all(kube, seen, 1, remove=True)
    assert await read_charged(kube) == 15
    await old
    assert await read_charged(kube) == 15
    [usage] = kube.list_objects(GatewayUsage.plural)
    assert usage["status"]["requests"] == 3


@in_virtual_time
async def test_write_with_lost_response_is_not_repeated() -> None:
    kube = FakeKubernetes()
    seen = [put_task(kube, 0, 5)]
    lost = Fault(WriteOutcomeUnknown("no answer"), applied=True)
    kube.order_faults("patch_status", lost)
    assert await aggregate_runs(kube, "demo", DAY, seen, (), NOW) == {seen[0]["metadata"]["uid"]}
    assert await read_charged(kube) == 5


@in_virtual_time
async def test_names_are_dropped_once_tasks_are_marked() -> None:
    kube = FakeKubernetes()
    first, second = put_task(kube, 0, 5), put_task(kube, 1, 5)
    await aggregate_runs(kube, "demo", DAY, [first], (), NOW)
    await mark(kube, first)
    await aggregate_runs(kube, "demo", DAY, [second], {first["metadata"]["uid"]}, NOW)
    [usage] = kube.list_objects(GatewayUsage.plural)
    assert list(list_pending(usage["status"]).values()) == ["task-1"]


@in_virtual_time
async def test_unacknowledged_names_make_room_when_marked() -> None:
    kube = FakeKubernetes()
    seen = [put_task(kube, number, 1) for number in range(MOST_PENDING + 50)]
    for start in range(0, MOST_PENDING, 200):
        await aggregate_runs(kube, "demo", DAY, seen[start : start + 200], (), NOW)
    for task in seen[:MOST_PENDING]:
        newest = await kube.get(TASKS, task["metadata"]["name"])
        await kube.patch_status(TASKS, newest, {"work": None})
    # none can be labelled here: without room nothing is lost or doubled for want of it
    kube.order_faults("patch", *[Fault(WriteConflict("changed"))] * MOST_PENDING * 2)
    late = seen[MOST_PENDING:]
    with pytest.raises(AggregationDeferred):
        await aggregate_runs(kube, "demo", DAY, late, (), NOW)
    assert await read_charged(kube) == len(seen)
    for task in seen[:MOST_PENDING]:
        await mark(kube, task)
    done = await aggregate_runs(kube, "demo", DAY, late, (), NOW)
    assert done == {task["metadata"]["uid"] for task in late}
    assert await read_charged(kube) == len(seen)


@in_virtual_time
async def test_recreated_task_of_same_name_is_charged_again() -> None:
    kube = FakeKubernetes()
    first = put_task(kube, 0, 5)
    await aggregate_runs(kube, "demo", DAY, [first], (), NOW)
    kube.remove(TASKS, "task-0")
    second = put_task(kube, 0, 7)
    await aggregate_runs(kube, "demo", DAY, [second], (), NOW)
    assert await read_charged(kube) == 12


@in_virtual_time
async def test_task_without_finalizer_is_aggregated() -> None:
    kube = FakeKubernetes()
    task = put_task(kube, 0, 5, finalizers=[])
    assert not is_aggregated(task)
    await aggregate_runs(kube, "demo", DAY, [task], (), NOW)
    await mark(kube, task)
    assert await read_charged(kube) == 5


@in_virtual_time
async def test_closed_day_takes_no_charge() -> None:
    kube = FakeKubernetes()
    task = put_task(kube, 0, 5)
    usage = kube.put(
        GatewayUsage.plural,
        {
            "metadata": {"name": f"demo-{DAY}", "labels": {ACCOUNT_LABEL: "demo"}},
            "spec": {"accountName": "demo", "day": DAY},
            "status": {"requests": 1, "chargedMicros": 3, "closed": True},
        },
    )
    with pytest.raises(AggregationDeferred):
        await aggregate_runs(kube, "demo", DAY, [task], (), NOW)
    assert kube.list_objects(GatewayUsage.plural) == [usage]
