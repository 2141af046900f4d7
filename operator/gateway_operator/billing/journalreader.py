"""Folds the usage journal into usage objects, and removes what is folded. Shard 0's owner does it.

Two that do it at a time do no harm. Whoever is killed leaves objects that are folded again, which
adds nothing to the days whose marks say so.
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
from gateway_operator.tasks.tools import Tools

DayName = tuple[str, str]
"""An account and a day."""


class JournalCursor:
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


MOST_OBJECTS = 400
"""Objects in one round, at most."""
IDLE_SECONDS = 5.0
"""From one look to the next while nothing is found; a listing of a bucket costs money."""
ENDED_SECONDS = 3600.0
"""How long nothing has to be left of a process's journal for its marks to be dropped: whoever has
read what was there, a rebuild or a halted owner, is done with it by then."""
SWEEP = "journal"
_FOLDS_AT_ONCE = 8

_log = structlog.get_logger(__name__)


class JournalReader:
    """Rounds over the journal, each from where the one before has ended, listed anew at the end."""

    def __init__(
        self,
        tools: Tools,
        pause_seconds: float,
        *,
        most: int = MOST_OBJECTS,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._tools = tools
        self._backlog = JournalStore(tools.store)
        self._pause = pause_seconds
        self._most = most
        self._begun = time.monotonic()
        self._last_seen: dict[str, float] = {}
        self._courses: dict[str, JournalCursor] = {}
        tools.metrics.note_sweep(SWEEP, tools.now())

    async def run(self) -> None:
        """Folds until cancelled, whatever fails."""
        while True:
            begun = time.monotonic()
            found = 0
            with self._supervisor.guard(SWEEP, KubernetesError, StoreUnavailable) as attempt:
                found = await self.fold()
                self._tools.metrics.note_sweep(SWEEP, self._tools.now())
            if not attempt.failed and found and self._has_more():
                await asyncio.sleep(0)
                continue
            # a quarter of the time at most: accounts may be many, and the work on tasks goes first
            took = time.monotonic() - begun
            await asyncio.sleep(max(self._pause if found else IDLE_SECONDS, 3 * took))

    async def fold(self) -> int:
        """One round; how many objects there were in it. What the ports raise."""
        again = not self._has_more()
        if again:
            await self._list()
        self._note_processes(self._courses)
        asked = self._choose(again=again)
        found = await self._backlog.read((p, n) for p, numbers in asked.items() for n in numbers)
        self._halt(found.damaged)
        parts = divide_objects(
            [obj for obj in found.objects if not self._courses[obj.process].is_behind(obj.sequence)]
        )
        stuck: list[tuple[str, tuple[str, str], int]] = []
        slots = asyncio.Semaphore(_FOLDS_AT_ONCE)

        async def fold_part(whole: DayPart) -> None:
            name = (whole.account, whole.day)
            part = DayPart(*name)
            for process, entries in whole.by_process.items():
                first_left = self._courses[process].find_left(name, asked[process])
                for entry in entries:
                    if entry[0].sequence < first_left:
                        part.by_process[process].append(entry)
                    else:
                        stuck.append((process, name, entry[0].sequence))
            async with slots:
                for process in await self._fold_part(part) if part.by_process else ():
                    stuck.extend((process, name, o.sequence) for o, _ in part.by_process[process])

        await asyncio.gather(*map(fold_part, parts))
        for process, numbers in asked.items():
            self._courses[process].take_in(
                numbers,
                there=[obj.sequence for obj in found.objects if obj.process == process],
                stuck=[(name, n) for whose, name, n in stuck if whose == process],
            )
        await self._remove_done()
        self._tell()
        return len(found.objects)

    async def _list(self) -> None:
        listing = await self._backlog.list_sequences()
        before, self._courses = self._courses, {}
        for process, numbers in listing.numbers.items():
            self._courses[process] = course = before.get(process) or JournalCursor()
            course.list_anew(numbers)
        self._halt(listing.damaged)

    def _has_more(self) -> bool:
        return any(course.has_more() for course in self._courses.values())

    def _choose(self, *, again: bool) -> dict[str, list[int]]:
        """The oldest of each process, as many of each; what is stuck only `again` after a listing.

        Where a day cannot be written now, the others' are read on past it.
        """
        wanting = {p: c for p, c in self._courses.items() if c.has_more() or (again and c.stuck)}
        share = max(1, self._most // max(1, len(wanting)))
        return {p: course.choose(share, again=again) for p, course in wanting.items()}

    def _halt(self, damaged: dict[Name, JournalDamaged]) -> None:
        for (process, sequence), error in damaged.items():
            self._courses[process].halt(sequence)
            _log.error("a journal is damaged and not folded any more", error=str(error))

    async def _remove_done(self) -> None:
        done = {process: course.find_done() for process, course in self._courses.items()}
        self._tools.failpoints.reach("before-journal-removal")
        await self._backlog.remove((p, n) for p, numbers in done.items() for n in numbers)
        for process, numbers in done.items():
            self._courses[process].forget(numbers)
        self._tools.failpoints.reach("after-journal-removal")

    def _tell(self) -> None:
        metrics, courses = self._tools.metrics, self._courses.values()
        metrics.journal_objects.set(sum(course.count_left() for course in courses))
        metrics.journals_damaged.set(sum(course.halted is not None for course in courses))

    async def _fold_part(self, part: DayPart) -> Collection[str]:
        """The processes of which not all could be folded."""
        tools, now = self._tools, self._tools.now()
        added, left = 0, frozenset[str]()
        away = (KubernetesError, StoreUnavailable)
        # one odd day must not hold up those of others
        with self._supervisor.guard(SWEEP, *away, account=part.account, day=part.day) as attempt:
            added, left = await aggregate_calls(
                tools.kube, self._backlog, part, self._is_ended, now
            )
        if attempt.failed:
            return part.by_process
        tools.metrics.folded_calls.inc(added)
        tools.failpoints.reach("after-journal-fold")
        if left:
            _log.warning("no room for more journals", account=part.account, day=part.day)
        return left

    def _note_processes(self, names: Iterable[str]) -> None:
        """Remembers whose journals have something left, and since when those of others have not."""
        self._last_seen.update(dict.fromkeys(names, time.monotonic()))
        self._last_seen = {p: at for p, at in self._last_seen.items() if not self._is_ended(p)}

    def _is_ended(self, process: str) -> bool:
        return time.monotonic() - self._last_seen.get(process, self._begun) > ENDED_SECONDS
