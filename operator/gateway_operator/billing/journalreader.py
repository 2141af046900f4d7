"""The journal reader: aggregates the usage journal of calls into usage objects, and removes it.

Run by the owner of shard 0; two concurrent ones do no harm. A process that is killed leaves objects
that are aggregated again, which adds nothing to the days whose marks contain them.
"""

import asyncio
import math
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import structlog

from gateway_core.billing.journal import JournalDamaged
from gateway_core.billing.journal_store import (
    DayPart,
    JournalStore,
    Name,
    aggregate_calls,
    divide_objects,
)
from gateway_core.concurrency import Supervisor
from gateway_core.kube.errors import KubernetesError
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.context import Context

DayName = tuple[str, str]
"""Account and day."""


class JournalCursor:
    """The position up to which one process's journal is aggregated, and its gaps.

    It is read in order. A day that cannot be written now delays itself alone: later objects are
    added to the other days, and wait for this one, whose mark must not pass a missing object.
    Objects are removed in order, so all from the first one that waits stay.
    """

    def __init__(self) -> None:
        self.stuck: dict[DayName, list[int]] = {}
        self.halted: int | None = None
        self._ahead: list[int] = []
        self._reached = 0
        self._kept: list[int] = []

    def relist(self, numbers: Sequence[int]) -> None:
        """Apply a listing of the objects, in order."""
        self.halted = None
        self._ahead = [n for n in numbers if n > self._reached]
        listed = set(numbers)
        self._kept = [n for n in self._kept if n in listed]

    def halt(self, sequence: int) -> None:
        """Stop before an object that cannot be read, until it is repaired or removed."""
        self.halted = min(sequence, self.halted or sequence)

    def is_behind(self, sequence: int) -> bool:
        """Return whether the object has to wait for one that cannot be read."""
        return self.halted is not None and sequence >= self.halted

    def has_more(self) -> bool:
        """Return whether listed objects are left to read."""
        return self.halted is None and bool(self._ahead)

    def choose(self, most: int, *, again: bool) -> list[int]:
        """Return the next numbers to read, and as many waiting ones if they are tried `again`."""
        waiting = sorted({n for numbers in self.stuck.values() for n in numbers}) if again else []
        return [*waiting[:most], *islice(self._ahead if self.has_more() else (), most)]

    def find_left(self, name: DayName, chosen: Iterable[int]) -> float:
        """Return the first number that the day waits for and that is not read now; inf for none."""
        there = set(chosen)
        return next((n for n in self.stuck.get(name, ()) if n not in there), math.inf)

    def advance(
        self, chosen: Iterable[int], *, there: Sequence[int], stuck: Iterable[tuple[DayName, int]]
    ) -> None:
        """End a round: which numbers were chosen, which were found, and which have to wait."""
        tried = {n for n in chosen if not self.is_behind(n)}
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
        """Numbers that are aggregated everywhere, without a waiting one before them."""
        first = min((numbers[0] for numbers in self.stuck.values()), default=math.inf)
        return [n for n in self._kept if n < first]

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget removed objects."""
        gone = set(numbers)
        self._kept = [n for n in self._kept if n not in gone]

    def count_left(self) -> int:
        """Number of objects that are not removed."""
        return len(self._kept) + len(self._ahead)


MOST_OBJECTS = 400
"""Objects in one round, at most."""
IDLE_SECONDS = 5.0
"""Between two listings while the journal is empty: listing a bucket costs money."""
ENDED_SECONDS = 3600.0
"""How long a process's journal has to be empty before its marks are dropped: a rebuild or a halted
owner that has read it is done with it by then."""
SWEEP = "journal"
_PARTS_AT_ONCE = 8

_log = structlog.get_logger(__name__)


class JournalReader:
    """Reads the journal in rounds, and lists it anew when it has read to the end."""

    def __init__(
        self,
        context: Context,
        pause_seconds: float,
        *,
        most: int = MOST_OBJECTS,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._context = context
        self._backlog = JournalStore(context.store)
        self._pause = pause_seconds
        self._most = most
        self._begun = time.monotonic()
        self._last_seen: dict[str, float] = {}
        self._cursors: dict[str, JournalCursor] = {}
        context.metrics.note_sweep(SWEEP, context.now())

    async def run(self) -> None:
        """Aggregate until cancelled, also after failures."""
        while True:
            begun = time.monotonic()
            found = 0
            with self._supervisor.guard(SWEEP, KubernetesError, StoreUnavailable) as attempt:
                found = await self.aggregate()
                self._context.metrics.note_sweep(SWEEP, self._context.now())
            if not attempt.failed and found and self._has_more():
                await asyncio.sleep(0)
                continue
            # a quarter of the time at most: accounts may be many, and work on tasks goes first
            took = time.monotonic() - begun
            await asyncio.sleep(max(self._pause if found else IDLE_SECONDS, 3 * took))

    async def aggregate(self) -> int:
        """Aggregate one round; how many objects were in it."""
        again = not self._has_more()
        if again:
            await self._list()
        self._note_processes(self._cursors)
        chosen = self._choose(again=again)
        found = await self._backlog.read((p, n) for p, numbers in chosen.items() for n in numbers)
        self._halt(found.damaged)
        parts = divide_objects(
            [obj for obj in found.objects if not self._cursors[obj.process].is_behind(obj.sequence)]
        )
        stuck: list[tuple[str, tuple[str, str], int]] = []
        slots = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def aggregate_part(whole: DayPart) -> None:
            name = (whole.account, whole.day)
            part = DayPart(*name)
            for process, entries in whole.by_process.items():
                first_left = self._cursors[process].find_left(name, chosen[process])
                for entry in entries:
                    if entry[0].sequence < first_left:
                        part.by_process[process].append(entry)
                    else:
                        stuck.append((process, name, entry[0].sequence))
            async with slots:
                for process in await self._aggregate_part(part) if part.by_process else ():
                    stuck.extend((process, name, o.sequence) for o, _ in part.by_process[process])

        await asyncio.gather(*map(aggregate_part, parts))
        for process, numbers in chosen.items():
            self._cursors[process].advance(
                numbers,
                there=[obj.sequence for obj in found.objects if obj.process == process],
                stuck=[(name, n) for whose, name, n in stuck if whose == process],
            )
        # after the marks are written: an object that is removed unmarked would never be charged
        await self._remove_done()
        self._measure()
        return len(found.objects)

    async def _list(self) -> None:
        listing = await self._backlog.list_sequences()
        before, self._cursors = self._cursors, {}
        for process, numbers in listing.numbers.items():
            self._cursors[process] = cursor = before.get(process) or JournalCursor()
            cursor.relist(numbers)
        self._halt(listing.damaged)

    def _has_more(self) -> bool:
        return any(cursor.has_more() for cursor in self._cursors.values())

    def _choose(self, *, again: bool) -> dict[str, list[int]]:
        """Return the oldest numbers of each process; stuck ones only `again` after a listing.

        Where a day cannot be written now, those of other days are read on past it.
        """
        wanting = {p: c for p, c in self._cursors.items() if c.has_more() or (again and c.stuck)}
        share = max(1, self._most // max(1, len(wanting)))
        return {p: cursor.choose(share, again=again) for p, cursor in wanting.items()}

    def _halt(self, damaged: dict[Name, JournalDamaged]) -> None:
        for (process, sequence), error in damaged.items():
            self._cursors[process].halt(sequence)
            _log.error("a journal is damaged and not aggregated any more", error=str(error))

    async def _remove_done(self) -> None:
        done = {process: cursor.find_done() for process, cursor in self._cursors.items()}
        self._context.failpoints.reach("before-journal-removal")
        await self._backlog.remove((p, n) for p, numbers in done.items() for n in numbers)
        for process, numbers in done.items():
            self._cursors[process].forget(numbers)
        self._context.failpoints.reach("after-journal-removal")

    def _measure(self) -> None:
        metrics, cursors = self._context.metrics, self._cursors.values()
        metrics.journal_objects.set(sum(cursor.count_left() for cursor in cursors))
        metrics.journals_damaged.set(sum(cursor.halted is not None for cursor in cursors))

    async def _aggregate_part(self, part: DayPart) -> Collection[str]:
        """Return the processes whose entries could not all be aggregated."""
        context, now = self._context, self._context.now()
        added, left = 0, frozenset[str]()
        away = (KubernetesError, StoreUnavailable)
        # one odd day must not delay those of others
        with self._supervisor.guard(SWEEP, *away, account=part.account, day=part.day) as attempt:
            added, left = await aggregate_calls(
                context.kube, self._backlog, part, self._is_ended, now
            )
        if attempt.failed:
            return part.by_process
        context.metrics.aggregated_calls.inc(added)
        context.failpoints.reach("after-journal-fold")
        if left:
            _log.warning("no room for more journals", account=part.account, day=part.day)
        return left

    def _note_processes(self, names: Iterable[str]) -> None:
        """Note which journals are not empty, and since when the others are."""
        self._last_seen.update(dict.fromkeys(names, time.monotonic()))
        self._last_seen = {p: at for p, at in self._last_seen.items() if not self._is_ended(p)}

    def _is_ended(self, process: str) -> bool:
        return time.monotonic() - self._last_seen.get(process, self._begun) > ENDED_SECONDS
