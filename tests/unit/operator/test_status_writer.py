"""Writes of the steps: compare-and-set, and a fresh read where one did not land."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.ids import IdMint
from gateway_core.api.task import GatewayTask
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_operator.context import Context, Failpoints, Shards
from gateway_operator.metrics import Metrics
from gateway_operator.reconciler import Superseded
from gateway_operator.tasks.cache import TaskCache, TaskWriter
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.fakes.objects import FakeObjects

TASKS = "gatewaytasks"
REQUEST = {"accountName": "demo", "service": "sim", "action": "a", "modelId": "m"}


class Simulation:
    """A writer on a record that holds one task."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        context = Context(
            kube=self.kube,
            store=FakeObjects(),
            shards=Shards(),
            mint=IdMint(b"i" * 32),
            failpoints=Failpoints(),
            metrics=Metrics(),
            now=lambda: datetime(2030, 1, 1, tzinfo=UTC),
            post=self.kube.post_event,
        )
        self.cache = TaskCache()
        self.writer = TaskWriter(context, self.cache)
        metadata = {"name": "task-a"}
        self.obj = self.kube.put(TASKS, {"metadata": metadata, "spec": {"request": REQUEST}})
        self.cache.upsert(self.obj)
        self.task = GatewayTask.load(self.obj)

    @property
    def known(self) -> dict[str, Any] | None:
        task = self.cache.get("task-a")
        return None if task is None else task.source


@pytest.fixture
async def sim() -> Simulation:
    return Simulation()


async def test_written_status_is_known_at_once(sim: Simulation) -> None:
    await sim.writer.commit(sim.task, {"phase": "Running"})
    assert sim.known is not None
    assert sim.known["status"] == {"phase": "Running"}


async def test_change_by_another_writer_is_read_and_raised(sim: Simulation) -> None:
    other = await sim.kube.patch(TASKS, sim.obj, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Superseded):
        await sim.writer.commit(sim.task, {"phase": "Running"})
    assert sim.known == other


async def test_missing_object_is_forgotten(sim: Simulation) -> None:
    sim.kube.remove(TASKS, "task-a")
    with pytest.raises(Superseded):
        await sim.writer.commit(sim.task, {"phase": "Running"})
    assert sim.known is None


@pytest.mark.parametrize("applied", [True, False])
async def test_unknown_outcome_is_looked_up(sim: Simulation, applied: bool) -> None:
    sim.kube.order_faults("replace_status", Fault(WriteOutcomeUnknown("cut"), applied))
    with pytest.raises(Superseded):
        await sim.writer.commit(sim.task, {"phase": "Running"})
    assert sim.known is not None
    assert ("status" in sim.known) is applied


async def test_unavailable_record_leaves_the_known_object(sim: Simulation) -> None:
    sim.kube.away = True
    with pytest.raises(KubernetesUnavailable):
        await sim.writer.commit(sim.task, {"phase": "Running"})
    assert sim.known == sim.obj


@pytest.mark.parametrize(
    "error", [WriteConflict("x"), ObjectNotFound("x"), WriteOutcomeUnknown("x")]
)
async def test_failed_amendment_is_superseded(sim: Simulation, error: Exception) -> None:
    sim.kube.order_faults("patch", Fault(error))
    with pytest.raises(Superseded):
        await sim.writer.amend(sim.task, {"metadata": {"finalizers": []}})


async def test_held_back_status_is_written_with_the_next_commit(sim: Simulation) -> None:
    sim.writer.hold_back(sim.task, {"phase": "Submitting"})
    assert sim.cache.is_unwritten("task-a")
    held = sim.cache.get("task-a")
    assert held is not None
    await sim.writer.commit(held, {"startTime": "2030-01-01T00:00:00Z"})
    obj = sim.kube.find(TASKS, "task-a")
    assert obj is not None
    assert obj["status"] == {"phase": "Submitting", "startTime": "2030-01-01T00:00:00Z"}
    with pytest.raises(Superseded):
        sim.writer.hold_back(sim.task, {"phase": "Submitting"})
