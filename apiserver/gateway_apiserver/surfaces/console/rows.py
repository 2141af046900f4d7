"""Rows of tasks and batches, as lists show them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

from gateway_apiserver.surfaces.console.row_index import Row
from gateway_core.api.task import TERMINAL_PHASES
from gateway_core.api.times import parse_time
from gateway_core.batches.rendering import has_ended, read_status
from gateway_core.billing.usage_store import is_aggregated
from gateway_core.kube.lists import find_position


@dataclass(frozen=True, slots=True)
class RunRow(Row):
    """A task or batch. `is_owed`: it has ended, and its charge may not be in the usage yet."""

    is_owed: bool


@dataclass(frozen=True, slots=True)
class TaskRow(RunRow):
    """A task. Times are RFC 3339, `ended` is empty before the end."""

    model: str
    phase: str
    ended: str
    micros: int | None
    callback: str

    @property
    def seconds(self) -> float | None:
        """Seconds from its creation to its end; None before."""
        return count_seconds(self.created, self.ended)


@dataclass(frozen=True, slots=True)
class BatchRow(RunRow):
    """A batch, its status on the wire, and its lines."""

    status: str
    total: int
    completed: int
    failed: int


def count_seconds(created: str, ended: str) -> float | None:
    """Seconds from the creation of a task to its end; None before."""
    if not ended:
        return None
    return max(0.0, (parse_time(ended) - parse_time(created)).total_seconds())


def project_task_row(obj: Mapping[str, Any]) -> TaskRow | None:
    """The row of a GatewayTask; None once its deletion has begun."""
    if obj["metadata"].get("deletionTimestamp"):
        return None
    status = obj.get("status") or {}
    created, sequence, name = find_position(obj)
    phase = intern(status.get("phase") or "Accepted")
    return TaskRow(
        intern(created),
        sequence,
        name,
        phase in TERMINAL_PHASES and not is_aggregated(obj),
        intern(obj["spec"]["request"]["modelId"]),
        phase,
        intern(status.get("completionTime") or ""),
        status.get("chargedMicros"),
        intern((status.get("callback") or {}).get("state") or ""),
    )


def project_batch_row(obj: Mapping[str, Any]) -> BatchRow | None:
    """The row of a GatewayBatch; None once its deletion has begun."""
    if obj["metadata"].get("deletionTimestamp"):
        return None
    counts = (obj.get("status") or {}).get("counts") or {}
    created, sequence, name = find_position(obj)
    return BatchRow(
        intern(created),
        sequence,
        name,
        has_ended(obj) and not is_aggregated(obj),
        read_status(obj),
        counts.get("total", 0),
        counts.get("completed", 0),
        counts.get("failed", 0),
    )
