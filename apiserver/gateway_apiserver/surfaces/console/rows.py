"""Rows of batches, as lists show them, and of days of usage. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Self

from gateway_apiserver.surfaces.batches.rendering import read_status
from gateway_core.billing.reports import UsageDay, read_usage_day
from gateway_core.kube.lists import find_position
from gateway_core.kube.row_index import Row
from gateway_core.tasks.rows import RunRow, find_owed

MOST_LINES = 500
"""Lines of a day that its row keeps, of about 150 bytes, at most. An account has about nine such
days: older ones are in the object store."""

MOST_DROPS = 24
"""Versions of a day whose dropped names are kept: a day is written every second at most, and rows
whose watch is silent for 20 s are not shown."""


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
class BatchRow(RunRow):
    """A batch, its status on the wire, and its lines."""

    status: str
    total: int
    completed: int
    failed: int


def project_batch_row(obj: Mapping[str, Any]) -> BatchRow | None:
    """Return the row of a GatewayBatch; None once its deletion has begun."""
    if obj["metadata"].get("deletionTimestamp"):
        return None
    counts = (obj.get("status") or {}).get("counts") or {}
    created, sequence, name = find_position(obj)
    return BatchRow(
        intern(created),
        sequence,
        name,
        find_owed(obj),
        read_status(obj),
        counts.get("total", 0),
        counts.get("completed", 0),
        counts.get("failed", 0),
    )


def project_day_row(obj: Mapping[str, Any]) -> DayRow | None:
    """Return the row of the GatewayUsage of a day; None of that of past days."""
    if obj["spec"].get("day") is None:
        return None
    status = obj.get("status") or {}
    lines = sum(len(status.get(name) or ()) for name in ("rows", "spent"))
    return DayRow(*find_position(obj), read_usage_day(obj) if lines <= MOST_LINES else None)
