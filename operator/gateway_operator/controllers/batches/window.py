"""Which lines of a run are under way, and how far ahead of the oldest of them others have come.

What is ahead waits in memory when the results are put in order, so it is bounded, in lines and in
bytes. Places are counted among the lines that are not blank, from 0.
"""

from gateway_operator.controllers.batches.budget import Share

MOST_LINES_AHEAD = 10_000
MOST_BYTES_AHEAD = 16 * 1024 * 1024
MOST_BYTES_UNDER_WAY = 16 * 1024 * 1024
"""Of lines, each of which stays in memory until it is answered: hours, where nobody answers."""


class Window:
    """Lines from the oldest one under way on; their bytes are of the run's `share`."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._under_way: dict[int, int] = {}
        self._line_bytes = 0
        self._ahead: dict[int, int] = {}
        self._bytes = 0
        self._begun = 0

    def __len__(self) -> int:
        """How many lines are under way."""
        return len(self._under_way)

    def has_room(self) -> bool:
        """Whether the next line may be begun."""
        if not self._under_way:
            return True
        if self._line_bytes >= MOST_BYTES_UNDER_WAY or not self._share.has_room:
            return False
        oldest = next(iter(self._under_way))
        return self._begun - oldest < MOST_LINES_AHEAD and self._bytes < MOST_BYTES_AHEAD

    def begin(self, place: int, size: int) -> None:
        """The line, of so many bytes, is under way; lines begin in order."""
        self._under_way[place] = size
        self._line_bytes += size
        self._share.take(size)
        self._begun = place + 1

    def end(self, place: int, size: int) -> None:
        """The line has ended with a result of so many bytes."""
        kept = self._under_way.pop(place)
        self._line_bytes -= kept
        self._share.give(kept)
        self._ahead[place] = size
        self._bytes += size
        oldest = next(iter(self._under_way), self._begun)
        if place < oldest:
            # it was the oldest one: what has ended up to the next is ahead of nothing any more
            for known in [p for p in self._ahead if p < oldest]:
                self._bytes -= self._ahead.pop(known)
