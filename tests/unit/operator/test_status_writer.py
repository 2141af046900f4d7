"""Writes of the steps: compare-and-set, and a fresh look where one did not land."""

from typing import Any

import pytest

from gateway_core.kube.errors import (
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_operator.tasks.cache import TaskCache
from gateway_operator.tasks.statuswriter import StatusWriter, Superseded
from tests.fakes.kubernetes import FakeKubernetes, Fault

TASKS = "gatewaytasks"


class Scene:
    """A journal on a record that holds one task."""

    def __init__(self) -> None:
        self.kube = FakeKubernetes()
        self.live = TaskCache()
        self.journal = StatusWriter(self.kube, self.live)
        self.obj = self.kube.put(TASKS, {"metadata": {"name": "task-a"}, "spec": {}})
        self.live.upsert(self.obj)

    @property
    def known(self) -> dict[str, Any] | None:
        return self.live.get("task-a")


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_what_was_written_is_known_at_once(scene: Scene) -> None:
    new = await scene.journal.commit(scene.obj, {"phase": "Running"})
    assert scene.known == new
    assert new["status"] == {"phase": "Running"}


async def test_a_change_by_another_is_read_and_told(scene: Scene) -> None:
    other = await scene.kube.patch(TASKS, scene.obj, {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Superseded):
        await scene.journal.commit(scene.obj, {"phase": "Running"})
    assert scene.known == other


async def test_what_is_gone_is_forgotten(scene: Scene) -> None:
    scene.kube.remove(TASKS, "task-a")
    with pytest.raises(Superseded):
        await scene.journal.commit(scene.obj, {"phase": "Running"})
    assert scene.known is None


@pytest.mark.parametrize("applied", [True, False])
async def test_an_unknown_outcome_is_looked_up(scene: Scene, applied: bool) -> None:
    scene.kube.order_faults("replace_status", Fault(WriteOutcomeUnknown("cut"), applied))
    with pytest.raises(Superseded):
        await scene.journal.commit(scene.obj, {"phase": "Running"})
    assert scene.known is not None
    assert ("status" in scene.known) is applied


async def test_nothing_written_is_told_as_such(scene: Scene) -> None:
    scene.kube.away = True
    with pytest.raises(KubernetesUnavailable):
        await scene.journal.commit(scene.obj, {"phase": "Running"})
    assert scene.known == scene.obj


@pytest.mark.parametrize(
    "error", [WriteConflict("x"), ObjectNotFound("x"), WriteOutcomeUnknown("x")]
)
async def test_amending_is_the_same(scene: Scene, error: Exception) -> None:
    scene.kube.order_faults("patch", Fault(error))
    with pytest.raises(Superseded):
        await scene.journal.amend(scene.obj, {"metadata": {"finalizers": []}})
