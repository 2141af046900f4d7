"""Rows of tasks: what lists show of each. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Literal

from pydantic import BaseModel, Field

from gateway_core.api.ids import name_to_id
from gateway_core.api.money import MICROS_PER_DOLLAR
from gateway_core.api.task import PHASES, name_phase
from gateway_core.api.times import parse_time
from gateway_core.billing.charges import Charge, read_ended
from gateway_core.billing.usage_store import is_aggregated
from gateway_core.kube.lists import find_position
from gateway_core.kube.row_index import Row
from gateway_core.tasks.rendering import read_failure

TaskStatus = Literal["processing", "completed", "failed"]
"""The state of a task in REST and MCP, by contract; `WIRE_STATES` has it for each phase."""
WIRE_STATES: Mapping[str, TaskStatus] = {
    **dict.fromkeys(PHASES, "processing"),
    "Completed": "completed",
    "Failed": "failed",
}


@dataclass(frozen=True, slots=True)
class RunRow(Row):
    """A task or batch. `owed`: the charge of one that has ended, until it is in the usage."""

    owed: Charge | None

    @property
    def is_marked(self) -> bool:
        """True if its charge is not in the usage yet."""
        return self.owed is not None


@dataclass(frozen=True, slots=True)
class TaskRow(RunRow):
    """A task. Times are RFC 3339, `ended` is empty before the end; `error` is for the client.

    `key` is the name of the GatewayKey that made the call, empty for a task made with kubectl.
    """

    service: str
    action: str
    model: str
    phase: str
    ended: str
    micros: int | None
    callback: str
    error: str
    key: str

    @property
    def task_id(self) -> str:
        """The public id (`task_…`)."""
        return name_to_id(self.name)

    @property
    def status(self) -> TaskStatus:
        """The state that a poll shows."""
        # the field is open: another phase may have been written with kubectl
        return WIRE_STATES.get(self.phase, "processing")

    @property
    def seconds(self) -> float | None:
        """Seconds from its creation to its end; None before."""
        return count_seconds(self.created, self.ended)


class ListedTask(BaseModel):
    """A task in a list."""

    id: str
    service: str
    action: str
    model: str
    status: TaskStatus
    created_at: str
    ended_at: str | None
    cost: float | None = Field(description="Dollars charged; null until the task has ended.")
    error: str | None = Field(description="Why the task failed.")


def describe_row(row: TaskRow) -> ListedTask:
    """Return the task as lists of REST and MCP show it."""
    has_ended = row.status != "processing"
    return ListedTask(
        id=row.task_id,
        service=row.service,
        action=row.action,
        model=row.model,
        status=row.status,
        created_at=row.created,
        ended_at=row.ended or None,
        cost=(row.micros or 0) / MICROS_PER_DOLLAR if has_ended else None,
        error=row.error or None,
    )


def count_seconds(created: str, ended: str) -> float | None:
    """Return the seconds from the creation of a task to its end; None before."""
    if not ended:
        return None
    return max(0.0, (parse_time(ended) - parse_time(created)).total_seconds())


def project_task_row(obj: Mapping[str, Any]) -> TaskRow:
    """Return the row of a GatewayTask; also of one that is being deleted, which is archived."""
    status, request = obj.get("status") or {}, obj["spec"]["request"]
    phase = name_phase(status)
    created, sequence, name = find_position(obj)
    return TaskRow(
        intern(created),
        sequence,
        name,
        find_owed(obj),
        intern(request["service"]),
        intern(request["action"]),
        intern(request["modelId"]),
        intern(phase),
        intern(status.get("completionTime") or ""),
        status.get("chargedMicros"),
        intern((status.get("callback") or {}).get("state") or ""),
        intern(read_failure(status)["message"]) if phase == "Failed" else "",
        intern(request.get("keyName") or ""),
    )


def find_owed(obj: Mapping[str, Any]) -> Charge | None:
    """Return the charge of a run that has ended, until it is in the usage."""
    return None if is_aggregated(obj) else read_ended(obj)
