"""Reader of the usage journal, which adds each journal object once to the account's usage."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core.api.usage import MOST_JOURNALS, GatewayUsage, usage_name
from gateway_core.billing.journal import (
    PREFIX,
    JournalDamaged,
    JournalObject,
    decode_object,
    find_missing,
    name_object,
    parse_name,
)
from gateway_core.billing.usage import Charge, add_calls, drop_journals, list_journals
from gateway_core.billing.usage_store import FoldDeferred, open_usage
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.storage.objects import ObjectMissing, ObjectStore

_READS_AT_ONCE = 16
_MOST_MISSING = 10_000
_MOST_KEPT = 200_000
"""Records kept in memory, so that the rebuild of many accounts reads each object once."""

Name = tuple[str, int]
"""Process and number of an object."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The numbers that are to be read, in order, by process; where a journal cannot go on."""

    numbers: dict[str, list[int]]
    damaged: dict[Name, JournalDamaged]


@dataclass(frozen=True, slots=True)
class Found:
    """Objects in the order asked for, and those that are there but cannot be read."""

    objects: list[JournalObject]
    damaged: dict[Name, JournalDamaged]


class Backlog:
    """The journal's objects. What was read is kept as long as it is listed, as it never changes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[Name, JournalObject] = {}
        # a number below one that is listed was stored before that one: if missing, it is for good
        self._gone: set[Name] = set()
        self._current: asyncio.Task[Sequence[JournalObject]] | None = None
        self._next: asyncio.Task[Sequence[JournalObject]] | None = None

    async def list_sequences(self) -> Listing:
        """What is to be read. StoreUnavailable.

        Numbers that the listing leaves out are among them, whether they are there or not.
        """
        found: dict[str, list[int]] = {}
        async for entry in self._store.list_entries(PREFIX):
            parts = parse_name(entry.key)
            if parts is not None:
                found.setdefault(parts[0], []).append(parts[1])
        self._forget_unlisted(found)
        numbers: dict[str, list[int]] = {}
        damaged: dict[Name, JournalDamaged] = {}
        slots = asyncio.Semaphore(_READS_AT_ONCE)

        async def complete(process: str, sequences: list[int]) -> None:
            try:
                missing = find_missing(sequences, _MOST_MISSING)
            except JournalDamaged as error:
                damaged[process, sequences[0]] = error
                missing = []
            async with slots:
                earlier = await self._find_earlier(process, sequences[0])
            numbers[process] = sorted({*sequences, *missing, *earlier})

        await asyncio.gather(*(complete(*journal) for journal in found.items()))
        return Listing(numbers, damaged)

    async def read(self, names: Iterable[Name]) -> Found:
        """Those of the objects that are there. StoreUnavailable."""
        wanted = list(names)
        left = deque(wanted)
        there: dict[Name, JournalObject] = {}
        damaged: dict[Name, JournalDamaged] = {}

        async def read_on() -> None:
            while left:
                name = left.popleft()
                try:
                    obj = await self._read(*name)
                except JournalDamaged as error:
                    damaged[name] = error
                    continue
                except BaseException:
                    left.clear()
                    raise
                if obj is not None:
                    there[name] = obj

        try:
            await asyncio.gather(*(read_on() for _ in range(_READS_AT_ONCE)))
        finally:
            self._forget_beyond()
        return Found([there[name] for name in wanted if name in there], damaged)

    async def read_whole(self) -> Found:
        """Whatever is there, by process in order. StoreUnavailable."""
        listing = await self.list_sequences()
        found = await self.read((p, n) for p, some in listing.numbers.items() for n in some)
        return Found(found.objects, {**listing.damaged, **found.damaged})

    async def read_all(self) -> Sequence[JournalObject]:
        """All objects, by process in order. StoreUnavailable; JournalDamaged: not all can be read.

        However many ask while one read is under way share the next: it begins after they did.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._current))
            self._next.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(self._next)

    async def _read_after(
        self, before: asyncio.Task[Sequence[JournalObject]] | None
    ) -> Sequence[JournalObject]:
        if before is not None:
            await asyncio.wait((before,))
        mine, self._next = self._next, None
        self._current = mine
        try:
            found = await self.read_whole()
        finally:
            # what was read is kept by those who asked only
            if self._current is mine:
                self._current = None
        if found.damaged:
            raise next(iter(found.damaged.values()))
        return found.objects

    async def is_there(self, obj: JournalObject) -> bool:
        """Whether the object has not been removed."""
        try:
            await self._store.head(obj.key)
        except ObjectMissing:
            return False
        return True

    async def remove(self, names: Iterable[Name]) -> None:
        """Removes objects that are folded for all their accounts."""
        await self._store.delete_many([name_object(*name) for name in names])

    async def _find_earlier(self, process: str, first: int) -> list[int]:
        """Numbers right before the first one listed that are there all the same."""
        earlier: list[int] = []
        for sequence in range(first - 1, 0, -1):
            try:
                if await self._read(process, sequence) is None:
                    break
            except JournalDamaged:
                # who reads it is told
                pass
            earlier.append(sequence)
        return earlier

    async def _read(self, process: str, sequence: int) -> JournalObject | None:
        name = process, sequence
        if name in self._gone:
            return None
        known = self._known.get(name)
        if known is not None:
            return known
        key = name_object(process, sequence)
        try:
            obj = decode_object(key, await self._store.get(key))
        except ObjectMissing:
            self._gone.add(name)
            return None
        self._known[name] = obj
        return obj

    def _forget_unlisted(self, found: dict[str, list[int]]) -> None:
        listed = {(process, n) for process, numbers in found.items() for n in numbers}
        self._known = {name: obj for name, obj in self._known.items() if name in listed}
        self._gone = {
            (process, n)
            for process, n in self._gone - listed
            if process in found and found[process][0] - 1 <= n < found[process][-1]
        }

    def _forget_beyond(self) -> None:
        left = _MOST_KEPT
        for name, obj in list(self._known.items()):
            left -= len(obj.records) + 1
            if left < 0:
                del self._known[name]


_ATTEMPTS = 8

Entry = tuple[JournalObject, list[Charge]]


@dataclass(slots=True)
class DayPart:
    """What journals have of one account and day: objects and their charges, in order by process."""

    account: str
    day: str
    by_process: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))


def divide_objects(objects: Sequence[JournalObject]) -> list[DayPart]:
    """The objects, which are in order by process, by account and day."""
    parts: dict[tuple[str, str], DayPart] = {}
    for obj in objects:
        charges: dict[tuple[str, str], list[Charge]] = {}
        for charge in (record.to_charge() for record in obj.records):
            charges.setdefault((charge.account, charge.day), []).append(charge)
        for name, some in charges.items():
            part = parts.setdefault(name, DayPart(*name))
            part.by_process[obj.process].append((obj, some))
    return list(parts.values())


async def fold_calls(
    kube: KubernetesClient,
    backlog: Backlog,
    part: DayPart,
    is_ended: Callable[[str], bool],
    now: datetime,
) -> tuple[int, frozenset[str]]:
    """Adds what is not in the day yet: how many calls, and the processes that have to wait.

    These are those for whose marks there is no room. `is_ended` tells of a process whether nothing
    of its journal has been left for long: its mark may go then. FoldDeferred; what the ports raise.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(kube, part.account, part.day)
        status = usage.get("status") or {}
        if status.get("closed"):
            raise FoldDeferred(f"{usage_name(part.account, part.day)} is closed and about to go")
        new = await _select_new(backlog, part, list_journals(status))
        status = _make_room(status, new, is_ended)
        left = frozenset(_find_left(status, new))
        reached = {process: entries[-1][0].sequence for process, entries in new.items()}
        reached = {process: n for process, n in reached.items() if process not in left}
        if not reached:
            return 0, left
        charges = [c for process in reached for _, some in new[process] for c in some]
        change = add_calls(status, part.day, charges, reached, now)
        try:
            await kube.patch_status(GatewayUsage.plural, usage, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            continue
        return len(charges), left
    raise FoldDeferred(f"{usage_name(part.account, part.day)} is written by others all the time")


async def _select_new(
    backlog: Backlog, part: DayPart, marks: Mapping[str, int]
) -> dict[str, list[Entry]]:
    """By process what is not in the sums; processes that have nothing new are left out."""
    new: dict[str, list[Entry]] = {}
    for process, entries in part.by_process.items():
        if process in marks:
            new[process] = [entry for entry in entries if entry[0].sequence > marks[process]]
        else:
            there = await asyncio.gather(*(backlog.is_there(obj) for obj, _ in entries))
            new[process] = [
                entry for entry, is_there in zip(entries, there, strict=True) if is_there
            ]
    return {process: entries for process, entries in new.items() if entries}


def _make_room(
    status: Mapping[str, Any], wanted: Iterable[str], is_ended: Callable[[str], bool]
) -> Mapping[str, Any]:
    marks = list_journals(status)
    if len({*marks, *wanted}) <= MOST_JOURNALS:
        return status
    return drop_journals(status, {p for p in marks if p not in wanted and is_ended(p)})


def _find_left(status: Mapping[str, Any], wanted: Iterable[str]) -> list[str]:
    """Those of the processes that have no mark, and for which there is no room."""
    marks = list_journals(status)
    new = [process for process in wanted if process not in marks]
    return new[max(0, MOST_JOURNALS - len(marks)) :]
