"""What the record says of an account's money: charges of ended runs, holds of live ones.

Pure; used when the counters have to be rebuilt, and by the sweeper of stray holds.
"""

from dataclasses import dataclass
from typing import Any

from gateway_core.contract import batch

TERMINAL_PHASES = frozenset({"Completed", "Failed"})
"""Of tasks."""
ENDED_PHASES = TERMINAL_PHASES | frozenset(batch.TERMINAL_PHASES)
"""Of runs of both kinds, tasks and batches; their words mean the same."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run's part in the ledger: micro-dollars held, or charged on a UTC day."""

    held: int = 0
    charged: int = 0
    day: str | None = None


def read_entry(obj: dict[str, Any]) -> Entry:
    """The entry of one task or batch; all zero where it neither holds nor costs anything."""
    status = obj.get("status") or {}
    if status.get("phase") in ENDED_PHASES:
        ended = status.get("completionTime") or ""
        return Entry(charged=status.get("chargedMicros") or 0, day=ended[:10] or None)
    reserved = status.get("reservedMicros")
    if reserved is None:
        reserved = obj["spec"]["request"].get("reservedMicros")
    return Entry(held=reserved or 0)
