"""How many bytes the runs of this process keep: lines under way, and results not yet in the store.

Accounts share them as they share places: one gets more only while it has less than is free, so
that there is room for a newcomer. What is kept may be more by one line and one result a run, since
each goes on with at least these.
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
