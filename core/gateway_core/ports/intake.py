"""The operator's word to all API processes that the record is near its quota.

Fulfilled by `adapters.redis.intake`. Losing it stops nothing and lets nothing in that the record
itself would refuse.
"""

from typing import Protocol


class IntakeStop(Protocol):
    """A mark that all processes of one gateway share. Every method raises CountersUnavailable."""

    async def set(self, seconds: int) -> None:
        """Sets the mark; it lapses after so long unless it is set again."""
        ...

    async def clear(self) -> None:
        """Removes the mark."""
        ...

    async def is_set(self) -> bool:
        """Whether the mark is set."""
        ...
