"""Groups of calls without an object that share one hold, and what each is to be charged.

A call that is admitted alone is a group of one. Calls admitted from a lease belong to the lease's
current group. When the lease is renewed, calls that still run move to its next group. The records
of a group enter the journal in order, so the stored ones are always the first ones.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from typing import Protocol

from gateway_core.billing.counters import CallCharge, Hold
from gateway_core.billing.journal import CallRecord


class Owner(Protocol):
    """The lease of a group that may still take calls."""

    def note_end(self) -> None:
        """Called when a call of the group has ended."""

    def void(self) -> None:
        """Called when the group's hold is lost: nothing is left to take calls from."""


@dataclass(slots=True, eq=False)
class CallGroup:
    """Calls under way and ended calls under the hold `name`; amounts in micro-dollars.

    `running` are the reservations of calls under way by their names, `spare` is the part of the
    hold that no call uses, and `owed` the cost of the ended calls. `owner` is None for a call that
    was admitted alone, and once no further call joins.
    """

    account: str
    name: str
    subjects: tuple[str, ...]
    running: dict[str, int] = field(default_factory=dict)
    owner: Owner | None = None
    spare: int = 0
    owed: int = 0
    settled: bool = False
    records: list[CallRecord] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _sent: list[tuple[int, int]] = field(default_factory=list)
    _unstored: int = 0

    @property
    def is_open(self) -> bool:
        """Whether calls run or may join."""
        return self.owner is not None or bool(self.running)

    @property
    def is_stored(self) -> bool:
        """Whether the store has all records."""
        return not self._unstored

    @property
    def need(self) -> Hold:
        """The hold that covers the calls under way and the cost of the ended ones."""
        return Hold(self.name, sum(self.running.values()) + self.owed, self.subjects)

    def add(self, record: CallRecord) -> None:
        """Note that a call under way has ended, and that the journal has its record."""
        self.spare += self.running.pop(record.call) - record.micros
        self.owed += record.micros
        self.records.append(record)
        self._unstored += 1

    def note_sent(self, sequence: int, records: int) -> None:
        """Note that the next `records` are in the journal's object `sequence`; idempotent."""
        if not self._sent or self._sent[-1][0] < sequence:
            self._sent.append((sequence, records))

    def note_stored(self, records: int) -> None:
        """Note that the store has so many records more."""
        self._unstored -= records

    def count_missing(self, counted: int) -> int:
        """Cost of the records that are not in the journal up to the object `counted`."""
        return sum(
            record.micros
            for sequence, records in self._divide()
            if not 0 < sequence <= counted
            for record in records
        )

    def list_charges(self) -> tuple[CallCharge, ...]:
        """Return the cost of the ended calls, by journal object and minute."""
        charges: list[CallCharge] = []
        for sequence, records in self._divide():
            for _, found in groupby(records, _find_minute):
                together = list(found)
                micros = sum(record.micros for record in together)
                if micros:
                    charges.append(CallCharge(together[0].time, micros, sequence))
        return tuple(charges)

    def _divide(self) -> Iterator[tuple[int, Sequence[CallRecord]]]:
        """Yield the records by the sequence of their object, 0 for those that were not sent."""
        place = 0
        for sequence, records in self._sent:
            yield sequence, self.records[place : place + records]
            place += records
        yield 0, self.records[place:]


def _find_minute(record: CallRecord) -> tuple[date, int, int]:
    time = record.time
    return time.date(), time.hour, time.minute


class CallGroups:
    """The groups of a process, until their calls are counted and stored."""

    def __init__(self) -> None:
        self._groups: dict[str, CallGroup] = {}
        self._by_call: dict[str, CallGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[CallGroup]:
        return iter(self._groups.values())

    def __contains__(self, group: CallGroup) -> bool:
        return group.name in self._groups

    def get(self, call: str) -> CallGroup | None:
        """Return the group of a call that runs, or whose record may not be counted."""
        return self._by_call.get(call)

    def add(self, group: CallGroup) -> None:
        """Follow a group and the calls that run in it, which have left their former group."""
        self._groups[group.name] = group
        self._by_call.update(dict.fromkeys(group.running, group))

    def take(self, group: CallGroup, call: str, micros: int) -> None:
        """Let a call join the group and reserve `micros` of the spare part for it."""
        group.spare -= micros
        group.running[call] = micros
        self._by_call[call] = group

    def forget(self, group: CallGroup) -> None:
        """Forget a group whose calls are counted for sure."""
        self._groups.pop(group.name, None)
        for record in group.records:
            self._by_call.pop(record.call, None)

    def note_sent(self, records: Sequence[CallRecord], sequence: int) -> None:
        """Note in which object of the journal records are."""
        for group, some in self._count(records).items():
            group.note_sent(sequence, some)

    def note_stored(self, records: Sequence[CallRecord]) -> list[CallGroup]:
        """Note that the store has records; the groups that they belong to."""
        counts = self._count(records)
        for group, some in counts.items():
            group.note_stored(some)
        return list(counts)

    def _count(self, records: Sequence[CallRecord]) -> Counter[CallGroup]:
        counts = Counter(map(self._by_call.get, [record.call for record in records]))
        return Counter({group: number for group, number in counts.items() if group is not None})
