"""How far the journal of each process is folded, and what of it could not be."""

import math
from collections.abc import Iterable, Sequence
from itertools import islice

DayName = tuple[str, str]
"""An account and a day."""


class Course:
    """One process's journal on its way into the usage.

    It is read in order. A day that cannot be written now holds up itself alone: what comes later is
    folded into the other days, and waits for this one, whose mark must not pass what is missing.
    Objects are removed in order, so all from the first one that waits stay.
    """

    def __init__(self) -> None:
        self.stuck: dict[DayName, list[int]] = {}
        self.halted: int | None = None
        self._ahead: list[int] = []
        self._reached = 0
        self._kept: list[int] = []

    def list_anew(self, numbers: Sequence[int]) -> None:
        """Takes in which objects there are, in order."""
        self.halted = None
        self._ahead = [n for n in numbers if n > self._reached]
        listed = set(numbers)
        self._kept = [n for n in self._kept if n in listed]

    def halt(self, sequence: int) -> None:
        """The object cannot be read: nothing from it on is folded until it is mended or gone."""
        self.halted = min(sequence, self.halted or sequence)

    def is_behind(self, sequence: int) -> bool:
        """Whether the object has to wait for one that cannot be read."""
        return self.halted is not None and sequence >= self.halted

    def has_more(self) -> bool:
        """Whether something is listed that was not read."""
        return self.halted is None and bool(self._ahead)

    def choose(self, most: int, *, again: bool) -> list[int]:
        """The next numbers to be read, and as many of those that wait if they are tried `again`."""
        waiting = sorted({n for numbers in self.stuck.values() for n in numbers}) if again else []
        return [*waiting[:most], *islice(self._ahead if self.has_more() else (), most)]

    def find_left(self, name: DayName, asked: Iterable[int]) -> float:
        """The first number that the day waits for and that is not asked for: a fold ends there."""
        there = set(asked)
        return next((n for n in self.stuck.get(name, ()) if n not in there), math.inf)

    def take_in(
        self, asked: Iterable[int], *, there: Sequence[int], stuck: Iterable[tuple[DayName, int]]
    ) -> None:
        """Notes the end of a round: of what was `asked` for, what was there, and what waits."""
        tried = {n for n in asked if not self.is_behind(n)}
        waits: dict[DayName, set[int]] = {
            name: {n for n in numbers if n not in tried} for name, numbers in self.stuck.items()
        }
        for name, sequence in stuck:
            waits.setdefault(name, set()).add(sequence)
        self.stuck = {name: sorted(numbers) for name, numbers in waits.items() if numbers}
        self._kept += [n for n in there if n > self._reached and n in tried]
        self._reached = max(self._reached, *tried) if tried else self._reached
        self._ahead = [n for n in self._ahead if n > self._reached]

    def find_done(self) -> list[int]:
        """Those that are folded everywhere, and nothing before them waits."""
        first = min((numbers[0] for numbers in self.stuck.values()), default=math.inf)
        return [n for n in self._kept if n < first]

    def forget(self, numbers: Iterable[int]) -> None:
        """They are removed."""
        gone = set(numbers)
        self._kept = [n for n in self._kept if n not in gone]

    def count_left(self) -> int:
        """Objects that are not removed."""
        return len(self._kept) + len(self._ahead)
