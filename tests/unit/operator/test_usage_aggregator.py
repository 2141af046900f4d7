"""Ended tasks wait for one another: one write of the usage object for all that wait."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.api.usage import MOST_PENDING, GatewayUsage
from gateway_core.billing.usage_store import MOST_FOLDED, FoldDeferred, fold_runs, is_folded
from gateway_core.kube.records import Object, RecordUnavailable
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.metrics import Metrics
from tests.fakes.clock import in_virtual_time
from tests.fakes.records import FakeRecords, Fault
from tests.unit.operator.test_usage_folds import mark, put_task

USAGES = GatewayUsage.plural


def build(records: FakeRecords, *, most: int = 200) -> UsageAggregator:
    now = datetime(2026, 11, 21, 10, 1, tzinfo=UTC)
    return UsageAggregator(records, Metrics(), lambda: now, pause_seconds=2.0, most=most)


def count_writes(records: FakeRecords) -> int:
    return records.calls.count(("patch_status", USAGES))


def read_pending(records: FakeRecords) -> list[str]:
    [usage] = records.list_objects(USAGES)
    return [entry["name"] for entry in usage["status"]["pending"]]


@in_virtual_time
async def test_a_lone_task_waits_for_nobody() -> None:
    records = FakeRecords()
    folding, loop = build(records), asyncio.get_running_loop()
    begin = loop.time()
    await folding.fold(put_task(records, 0, 5))
    assert loop.time() - begin < 0.1


@in_virtual_time
async def test_what_comes_within_the_pause_is_written_together() -> None:
    records = FakeRecords()
    folding, loop = build(records), asyncio.get_running_loop()
    await folding.fold(put_task(records, 0, 5))
    begin = loop.time()
    await asyncio.gather(*(folding.fold(put_task(records, n, 5)) for n in range(1, 100)))
    assert 1.5 < loop.time() - begin < 2.5
    assert count_writes(records) == 2
    [usage] = records.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 500


@in_virtual_time
async def test_a_full_batch_does_not_wait() -> None:
    records = FakeRecords()
    folding, loop = build(records, most=10), asyncio.get_running_loop()
    await folding.fold(put_task(records, 0, 5))
    begin = loop.time()
    await asyncio.gather(*(folding.fold(put_task(records, n, 5)) for n in range(1, 31)))
    assert loop.time() - begin < 2.5
    assert count_writes(records) == 4


@in_virtual_time
async def test_all_that_waited_are_told_of_a_failure_and_can_come_again() -> None:
    records = FakeRecords()
    folding = build(records)
    tasks = [put_task(records, n, 5) for n in range(5)]
    records.order_faults("patch_status", Fault(RecordUnavailable("away")))
    results = await asyncio.gather(*map(folding.fold, tasks), return_exceptions=True)
    assert {type(result) for result in results} <= {FoldDeferred, type(None)}
    assert any(isinstance(result, FoldDeferred) for result in results)
    await asyncio.gather(*map(folding.fold, tasks))
    [usage] = records.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 25


@in_virtual_time
async def test_acknowledged_names_go_with_the_next_write() -> None:
    records = FakeRecords()
    folding = build(records)
    first = put_task(records, 0, 5)
    await folding.fold(first)
    await mark(records, first)
    folding.acknowledge(first)
    assert read_pending(records) == ["task-0"]
    await folding.fold(put_task(records, 1, 5))
    assert read_pending(records) == ["task-1"]


@in_virtual_time
async def test_one_that_gives_up_leaves_the_others() -> None:
    records = FakeRecords()
    folding = build(records)
    await folding.fold(put_task(records, 0, 5))
    leaving = asyncio.create_task(folding.fold(put_task(records, 1, 5)))
    staying = asyncio.create_task(folding.fold(put_task(records, 2, 5)))
    await asyncio.sleep(0.5)
    leaving.cancel()
    await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert read_pending(records) == ["task-0", "task-2"]


@in_virtual_time
async def test_what_is_marked_is_not_folded() -> None:
    records = FakeRecords()
    task = put_task(records, 0, 5)
    await mark(records, task)
    [marked] = records.list_objects("gatewaytasks")
    await build(records).fold(marked)
    assert records.list_objects(USAGES) == []


async def fill_pending(records: FakeRecords, **changes: Any) -> list[Object]:
    """Has a replica fold as many tasks as there is room for names, and go away before it marks."""
    now = datetime(2026, 11, 21, 10, 1, tzinfo=UTC)
    away = [put_task(records, number, 5) for number in range(MOST_PENDING)]
    for start in range(0, MOST_PENDING, MOST_FOLDED):
        batch = away[start : start + MOST_FOLDED]
        await fold_runs(records, "demo", "2026-11-21", batch, set(), now)
    for task in away if changes else ():
        newest = await records.get("gatewaytasks", task["metadata"]["name"])
        await records.patch_status("gatewaytasks", newest, changes)
    return away


@pytest.mark.parametrize("count", [1, 200])
def test_what_an_absent_replica_has_not_marked_holds_up_nobody(count: int) -> None:
    @in_virtual_time
    async def run() -> None:
        records = FakeRecords()
        away = await fill_pending(records)
        folding = build(records)
        records.calls.clear()
        mine = [put_task(records, number, 5) for number in range(1000, 1000 + count)]
        await asyncio.wait_for(asyncio.gather(*map(folding.fold, mine)), 10)
        [usage] = records.list_objects(USAGES)
        assert usage["status"]["chargedMicros"] == 5 * (MOST_PENDING + count)
        assert len(records.calls) < 4 * MOST_PENDING
        for task in away:
            marked = await records.get("gatewaytasks", task["metadata"]["name"])
            assert is_folded(marked)
            assert TASK_FINALIZER not in marked["metadata"]["finalizers"]

    run()


@pytest.mark.parametrize("count", [1, 200])
def test_without_room_for_names_the_fold_is_put_off(count: int) -> None:
    """Tasks that are open once more are left to their owner; who waits is told, at no haste."""

    @in_virtual_time
    async def run() -> None:
        records = FakeRecords()
        await fill_pending(records, work=None)
        folding = build(records)
        records.calls.clear()
        mine = [put_task(records, number, 5) for number in range(1000, 1000 + count)]
        folds = asyncio.gather(*map(folding.fold, mine), return_exceptions=True)
        results = await asyncio.wait_for(folds, 10)
        assert {type(result) for result in results} == {FoldDeferred}
        assert len(records.calls) < 4 * MOST_PENDING

    run()
