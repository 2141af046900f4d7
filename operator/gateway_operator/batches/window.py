"""Memory bounds of the runs of batches: one byte budget for all of them, and a window for each.

Accounts share the budget fairly: an account gets more only while it holds less than is free, which
leaves room for a newcomer. A run may exceed it by one line and one result, since it always goes on
with at least these. The window bounds how far finished lines are ahead of the oldest unfinished
one, because these wait in memory when the results are put in order.
"""

from collections import Counter

MOST_BYTES = 64 * 1024 * 1024


class Budget:
    """The bytes of all runs."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._free = most
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes that are kept now."""
        return self._held.total()

    def open(self, account: str) -> "Share":
        """What a run of the account keeps, to be closed at its end."""
        return Share(self, account)

    def has_room(self, account: str) -> bool:
        """Whether the account may keep more."""
        return self._held[account] < self._free

    def change(self, account: str, size: int) -> None:
        """The account keeps so many bytes more, or less."""
        self._free -= size
        self._held[account] += size
        if not self._held[account]:
            del self._held[account]


class Share:
    """One run's part of the budget."""

    def __init__(self, budget: Budget, account: str) -> None:
        self._budget = budget
        self._account = account
        self._held = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be kept."""
        return self._budget.has_room(self._account)

    def take(self, size: int) -> None:
        """So many bytes are kept from now on."""
        self._held += size
        self._budget.change(self._account, size)

    def give(self, size: int) -> None:
        """So many bytes are kept no longer."""
        self.take(-size)

    def close(self) -> None:
        """Nothing is kept any more."""
        self.give(self._held)


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
