"""Ended tasks wait for one another: one write of the usage object for all that wait."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.ids import FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.usage import MOST_PENDING, GatewayUsage
from gateway_core.billing.usage_store import (
    MOST_RUNS,
    AggregationDeferred,
    aggregate_runs,
    is_aggregated,
)
from gateway_core.kube.errors import KubernetesUnavailable, WriteConflict
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.metrics import Metrics
from tests.fakes.clock import in_virtual_time
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.unit.billing.usage_harness import mark, put_task

USAGES = GatewayUsage.plural


def build(kube: FakeKubernetes, *, most: int = 200) -> UsageAggregator:
    return UsageAggregator(kube, Metrics(), read_now, pause_seconds=2.0, most=most)


def read_now() -> datetime:
    return datetime(2026, 11, 21, 10, 1, tzinfo=UTC)


def count_writes(kube: FakeKubernetes) -> int:
    return kube.calls.count(("patch_status", USAGES))


def read_pending(kube: FakeKubernetes) -> list[str]:
    [usage] = kube.list_objects(USAGES)
    return [entry["name"] for entry in usage["status"]["pending"]]


@in_virtual_time
async def test_lone_task_is_written_at_once() -> None:
    kube = FakeKubernetes()
    aggregator, loop = build(kube), asyncio.get_running_loop()
    begin = loop.time()
    await aggregator.aggregate(put_task(kube, 0, 5))
    assert loop.time() - begin < 0.1


@in_virtual_time
async def test_tasks_within_the_pause_share_a_write() -> None:
    kube = FakeKubernetes()
    aggregator, loop = build(kube), asyncio.get_running_loop()
    await aggregator.aggregate(put_task(kube, 0, 5))
    begin = loop.time()
    await asyncio.gather(*(aggregator.aggregate(put_task(kube, n, 5)) for n in range(1, 100)))
    assert 1.5 < loop.time() - begin < 2.5
    assert count_writes(kube) == 2
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 500


@in_virtual_time
async def test_full_batch_does_not_wait() -> None:
    kube = FakeKubernetes()
    aggregator, loop = build(kube, most=10), asyncio.get_running_loop()
    await aggregator.aggregate(put_task(kube, 0, 5))
    begin = loop.time()
    await asyncio.gather(*(aggregator.aggregate(put_task(kube, n, 5)) for n in range(1, 31)))
    assert loop.time() - begin < 2.5
    assert count_writes(kube) == 4


@in_virtual_time
async def test_failure_is_raised_to_all_and_can_be_retried() -> None:
    kube = FakeKubernetes()
    aggregator = build(kube)
    tasks = [put_task(kube, n, 5) for n in range(5)]
    kube.order_faults("patch_status", Fault(KubernetesUnavailable("away")))
    results = await asyncio.gather(*map(aggregator.aggregate, tasks), return_exceptions=True)
    assert {type(result) for result in results} <= {AggregationDeferred, type(None)}
    assert any(isinstance(result, AggregationDeferred) for result in results)
    await asyncio.gather(*map(aggregator.aggregate, tasks))
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 25


@in_virtual_time
async def test_acknowledged_names_go_with_the_next_write() -> None:
    kube = FakeKubernetes()
    aggregator = build(kube)
    first = put_task(kube, 0, 5)
    await aggregator.aggregate(first)
    await mark(kube, first)
    aggregator.acknowledge(first)
    assert read_pending(kube) == ["task-0"]
    await aggregator.aggregate(put_task(kube, 1, 5))
    assert read_pending(kube) == ["task-1"]


@in_virtual_time
async def test_cancelled_waiter_leaves_the_others() -> None:
    kube = FakeKubernetes()
    aggregator = build(kube)
    await aggregator.aggregate(put_task(kube, 0, 5))
    leaving = asyncio.create_task(aggregator.aggregate(put_task(kube, 1, 5)))
    staying = asyncio.create_task(aggregator.aggregate(put_task(kube, 2, 5)))
    await asyncio.sleep(0.5)
    leaving.cancel()
    await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert read_pending(kube) == ["task-0", "task-2"]


@in_virtual_time
async def test_marked_task_is_not_aggregated() -> None:
    kube = FakeKubernetes()
    task = put_task(kube, 0, 5)
    await mark(kube, task)
    [marked] = kube.list_objects("gatewaytasks")
    await build(kube).aggregate(marked)
    assert kube.list_objects(USAGES) == []


@in_virtual_time
async def test_repeated_aggregation_is_counted_once() -> None:
    kube, metrics = FakeKubernetes(), Metrics()
    task = put_task(kube, 0, 5)
    for _ in range(2):
        await UsageAggregator(kube, metrics, read_now, pause_seconds=2.0).aggregate(task)
    assert metrics.registry.get_sample_value("gateway_tasks_folded_total") == 1


async def fill_pending(kube: FakeKubernetes, **changes: Any) -> list[Object]:
    """Has a replica fold as many tasks as there is room for names, and go away before it marks."""
    away = [put_task(kube, number, 5) for number in range(MOST_PENDING)]
    for start in range(0, MOST_PENDING, MOST_RUNS):
        batch = away[start : start + MOST_RUNS]
        await aggregate_runs(kube, "demo", "2026-11-21", batch, set(), read_now())
    for task in away if changes else ():
        newest = await kube.get("gatewaytasks", task["metadata"]["name"])
        await kube.patch_status("gatewaytasks", newest, changes)
    return away


@pytest.mark.parametrize("count", [1, 200])
@in_virtual_time
async def test_unmarked_names_of_absent_replica_delay_nothing(count: int) -> None:
    kube = FakeKubernetes()
    away = await fill_pending(kube)
    aggregator = build(kube)
    kube.calls.clear()
    mine = [put_task(kube, number, 5) for number in range(1000, 1000 + count)]
    await asyncio.wait_for(asyncio.gather(*map(aggregator.aggregate, mine)), 10)
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 5 * (MOST_PENDING + count)
    assert len(kube.calls) < 4 * MOST_PENDING
    for task in away:
        marked = await kube.get("gatewaytasks", task["metadata"]["name"])
        assert is_aggregated(marked)
        assert TASK_FINALIZER in marked["metadata"]["finalizers"], "its owner closes it"


@pytest.mark.parametrize("count", [1, 200])
@in_virtual_time
async def test_names_of_tasks_with_pending_callbacks_delay_nothing(count: int) -> None:
    """They are labelled where the usage has no room for more names, each once; others are not."""
    kube = FakeKubernetes()
    away = await fill_pending(kube, work=None)
    for task in away[:10]:
        newest = await kube.get("gatewaytasks", task["metadata"]["name"])
        await kube.patch_status("gatewaytasks", newest, {"work": "Settled"})
    aggregator = build(kube)
    kube.calls.clear()
    mine = [put_task(kube, number, 5) for number in range(1000, 1000 + count)]
    await asyncio.wait_for(asyncio.gather(*map(aggregator.aggregate, mine)), 10)
    [usage] = kube.list_objects(USAGES)
    assert usage["status"]["chargedMicros"] == 5 * (MOST_PENDING + count)
    assert kube.calls.count(("patch", "gatewaytasks")) == MOST_PENDING - 10
    labels = [task["metadata"]["labels"] for task in kube.list_objects("gatewaytasks")]
    assert [FOLDED_LABEL in each for each in labels[:20]] == [False] * 10 + [True] * 10


@pytest.mark.parametrize("count", [1, 200])
@in_virtual_time
async def test_aggregation_is_deferred_without_room_for_names(count: int) -> None:
    """Their owners write the tasks all the time, so none can be labelled."""
    kube = FakeKubernetes()
    await fill_pending(kube)
    aggregator = build(kube)
    kube.order_faults("patch", *[Fault(WriteConflict("changed"))] * 10 * MOST_PENDING)
    kube.calls.clear()
    mine = [put_task(kube, number, 5) for number in range(1000, 1000 + count)]
    folds = asyncio.gather(*map(aggregator.aggregate, mine), return_exceptions=True)
    results = await asyncio.wait_for(folds, 10)
    assert {type(result) for result in results} == {AggregationDeferred}
    assert len(kube.calls) < 4 * MOST_PENDING
