"""Rows of tasks and batches, as lists show them, and of days of usage. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Self

from gateway_apiserver.surfaces.batches.rendering import read_status
from gateway_apiserver.surfaces.console.row_index import Row
from gateway_core.api.times import parse_time
from gateway_core.billing.charges import Charge, read_ended
from gateway_core.billing.reports import UsageDay, read_usage_day
from gateway_core.billing.usage_store import is_aggregated
from gateway_core.kube.lists import find_position

MOST_LINES = 500
"""Lines of a day that its row keeps, of about 150 bytes, at most. An account has about nine such
days: older ones are in the object store."""

MOST_DROPS = 24
"""Versions of a day whose dropped names are kept: a day is written every second at most, and rows
whose watch is silent for 20 s are not shown."""


@dataclass(frozen=True, slots=True)
class RunRow(Row):
    """A task or batch. `owed`: the charge of one that has ended, until it is in the usage."""

    owed: Charge | None

    @property
    def is_marked(self) -> bool:
        """True if its charge is not in the usage yet."""
        return self.owed is not None


@dataclass(frozen=True, slots=True)
class DayRow(Row):
    """A day of usage; without it where the day has so many lines that it is not kept.

    `dropped` are the names of runs that the latest versions dropped. A run is named until its label
    is there, which the row of the run may not have seen yet.
    """

    usage: UsageDay | None
    dropped: tuple[frozenset[str], ...] = ()

    @property
    def known(self) -> UsageDay | None:
        """The day, with the names that were dropped."""
        if self.usage is None or not self.dropped:
            return self.usage
        return replace(self.usage, added=self.usage.added.union(*self.dropped))

    def follow(self, before: Row | None) -> Self:
        """This version of the day with the names that it, and some before, have dropped."""
        if not isinstance(before, DayRow) or self.usage is None or before.usage is None:
            return self
        gone = before.usage.added - self.usage.added
        dropped = (*before.dropped, gone)[-MOST_DROPS:] if gone else before.dropped
        return replace(self, dropped=dropped)

    @property
    def is_marked(self) -> bool:
        """All of them are."""
        return True


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
        _find_owed(obj),
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
        _find_owed(obj),
        read_status(obj),
        counts.get("total", 0),
        counts.get("completed", 0),
        counts.get("failed", 0),
    )


def project_day_row(obj: Mapping[str, Any]) -> DayRow | None:
    """The row of the GatewayUsage of a day; None of that of past days."""
    if obj["spec"].get("day") is None:
        return None
    status = obj.get("status") or {}
    lines = sum(len(status.get(name) or ()) for name in ("rows", "spent"))
    return DayRow(*find_position(obj), read_usage_day(obj) if lines <= MOST_LINES else None)


def _find_owed(obj: Mapping[str, Any]) -> Charge | None:
    return None if is_aggregated(obj) else read_ended(obj)
