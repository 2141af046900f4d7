"""Cancellation of a task by its account: `spec.desiredState`, which the operator acts on.

The operator stops the provider's job, fails the task and releases its hold. Until then the task is
still processing; it may also complete, where the provider's result came first.
"""

from collections.abc import Mapping
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.errors import Conflict
from gateway_core.api.resource import Object
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.kinds import TASKS
from gateway_core.kube.repository import writing
from gateway_core.tasks.finder import TaskFinder, TaskRecord, project_task, unknown_task
from gateway_core.tasks.rendering import read_failure


class TaskCancellation:
    """Cancels tasks; one of another account is not found (contract §0.5)."""

    def __init__(self, finder: TaskFinder, kube: KubernetesClient) -> None:
        self._finder = finder
        self._kube = kube

    async def cancel(self, account: str, wire_id: str, service: str, action: str) -> TaskRecord:
        """Cancel the task, or find it cancelled before.

        Raises:
            NotFound: the account has no task of this id, service and action.
            Conflict: the task has ended otherwise.
            Unavailable, OutcomeUnknown: the Kubernetes API does not answer in time.
        """

        async def read() -> Object:
            return await self._finder.show(account, wire_id)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            request = obj["spec"]["request"]
            if (request["service"], request["action"]) != (service, action):
                raise unknown_task()
            return write_cancellation(obj)

        async with writing(TASKS, wire_id):
            return project_task(await self._kube.update(GatewayTask.plural, read, decide))


def write_cancellation(obj: Object) -> Mapping[str, Any] | None:
    """Return the patch that cancels a task; None where it is cancelled. Conflict once it ended."""
    status = obj.get("status") or {}
    phase = status.get("phase")
    if phase in TERMINAL_PHASES:
        if phase == "Failed" and read_failure(status)["code"] == Reason.CANCELLED.code:
            return None
        raise Conflict(f"The task has already {phase.lower()}.", code="task_state_conflict")
    is_ending = obj["metadata"].get("deletionTimestamp") is not None
    if is_ending or obj["spec"].get("desiredState") == "Cancelled":
        return None
    return {"spec": {"desiredState": "Cancelled"}}
