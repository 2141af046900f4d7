"""Memory bounds of the runs of batches: one byte budget for all of them, and a window for each.

Accounts share the budget fairly: an account gets more only while it holds less than is free, which
leaves room for a newcomer. A run may exceed it by one line and one result, since it always goes on
with at least these. The window bounds how far finished lines are ahead of the oldest unfinished
one, because these wait in memory when the results are put in order.
"""

from dataclasses import dataclass, field

from gateway_core.concurrency import FairSemaphore

MOST_BYTES = 64 * 1024 * 1024


@dataclass(eq=False)
class Share:
    """One run's part of the byte budget, to be closed at its end."""

    budget: FairSemaphore
    account: str
    _held: int = field(default=0, init=False)

    @property
    def has_room(self) -> bool:
        """Whether the run may use more."""
        return self.budget.has_room(self.account)

    def take(self, size: int) -> None:
        """Use `size` bytes more."""
        self._held += size
        self.budget.acquire_nowait(self.account, size)

    def give(self, size: int) -> None:
        """Return `size` bytes."""
        self._held -= size
        self.budget.release(self.account, size)

    def close(self) -> None:
        """Return all bytes."""
        self.give(self._held)


MOST_LINES_AHEAD = 10_000
MOST_BYTES_AHEAD = 16 * 1024 * 1024
MOST_BYTES_UNDER_WAY = 16 * 1024 * 1024
"""Bytes of lines in flight: each stays in memory until it is answered, hours in an outage."""


class Window:
    """Lines from the oldest one in flight on, by their place among the lines that are not blank."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._under_way: dict[int, int] = {}
        self._line_bytes = 0
        self._ahead: dict[int, int] = {}
        self._bytes = 0
        self._begun = 0

    def __len__(self) -> int:
        """Lines in flight."""
        return len(self._under_way)

    def has_room(self) -> bool:
        """Whether the next line may begin."""
        if not self._under_way:
            return True
        if self._line_bytes >= MOST_BYTES_UNDER_WAY or not self._share.has_room:
            return False
        oldest = next(iter(self._under_way))
        return self._begun - oldest < MOST_LINES_AHEAD and self._bytes < MOST_BYTES_AHEAD

    def begin(self, place: int, size: int) -> None:
        """Begin a line of `size` bytes; lines begin in order."""
        self._under_way[place] = size
        self._line_bytes += size
        self._share.take(size)
        self._begun = place + 1

    def end(self, place: int, size: int) -> None:
        """End a line with a result of `size` bytes."""
        kept = self._under_way.pop(place)
        self._line_bytes -= kept
        self._share.give(kept)
        self._ahead[place] = size
        self._bytes += size
        oldest = next(iter(self._under_way), self._begun)
        if place < oldest:
            # it was the oldest one: results up to the next line in flight are no longer ahead
            for known in [p for p in self._ahead if p < oldest]:
                self._bytes -= self._ahead.pop(known)
