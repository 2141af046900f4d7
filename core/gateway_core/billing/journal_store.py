"""Journal objects in the store, and their aggregation: each counts once in its account's usage."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core.api.usage import MOST_JOURNALS, GatewayUsage, usage_name
from gateway_core.billing.charges import Charge
from gateway_core.billing.journal import (
    PREFIX,
    JournalDamaged,
    JournalObject,
    decode_object,
    find_missing,
    name_object,
    parse_name,
)
from gateway_core.billing.usage import add_calls, drop_journals, list_journals
from gateway_core.billing.usage_store import AggregationDeferred, open_usage
from gateway_core.concurrency import map_bounded
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_core.storage.objects import ObjectMissing, ObjectStore

_READS_AT_ONCE = 16
_ATTEMPTS = 8
_MOST_MISSING = 10_000
_MOST_KEPT = 200_000
"""Records cached in memory, so that the rebuild of many accounts reads each object once."""

Name = tuple[str, int]
"""Process and sequence number of an object."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Sequence numbers to read, sorted, by process; and damaged places."""

    numbers: dict[str, list[int]]
    damaged: dict[Name, JournalDamaged]


@dataclass(frozen=True, slots=True)
class Found:
    """Objects in the order asked for, and those that exist but cannot be read."""

    objects: list[JournalObject]
    damaged: dict[Name, JournalDamaged]


class JournalStore:
    """Reads and removes journal objects. Objects never change, so they are cached while listed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[Name, JournalObject] = {}
        # a process stores its objects in order: one missing below a listed one is missing for good
        self._gone: set[Name] = set()
        self._current: asyncio.Task[Sequence[JournalObject]] | None = None
        self._next: asyncio.Task[Sequence[JournalObject]] | None = None

    async def list_sequences(self) -> Listing:
        """List the sequence numbers to read. StoreUnavailable.

        Gaps are included, since listings of some stores lag behind: such an object may exist.
        """
        found: dict[str, list[int]] = {}
        async for entry in self._store.list_entries(PREFIX):
            parts = parse_name(entry.key)
            if parts is not None:
                found.setdefault(parts[0], []).append(parts[1])
        self._forget_unlisted(found)
        numbers: dict[str, list[int]] = {}
        damaged: dict[Name, JournalDamaged] = {}

        async def complete(journal: tuple[str, list[int]]) -> None:
            process, sequences = journal
            try:
                missing = find_missing(sequences, _MOST_MISSING)
            except JournalDamaged as error:
                damaged[process, sequences[0]] = error
                missing = []
            earlier = await self._find_earlier(process, sequences[0])
            numbers[process] = sorted({*sequences, *missing, *earlier})

        await map_bounded(_READS_AT_ONCE, complete, found.items())
        return Listing(numbers, damaged)

    async def read(self, names: Iterable[Name]) -> Found:
        """Read those of the objects that exist. StoreUnavailable."""
        damaged: dict[Name, JournalDamaged] = {}

        async def read_one(name: Name) -> JournalObject | None:
            try:
                return await self._read(*name)
            except JournalDamaged as error:
                damaged[name] = error
                return None

        try:
            found = await map_bounded(_READS_AT_ONCE, read_one, names)
        finally:
            self._forget_beyond()
        return Found([obj for obj in found if obj is not None], damaged)

    async def read_whole(self) -> Found:
        """Read all objects, by process in order. StoreUnavailable."""
        listing = await self.list_sequences()
        found = await self.read((p, n) for p, some in listing.numbers.items() for n in some)
        return Found(found.objects, {**listing.damaged, **found.damaged})

    async def read_all(self) -> Sequence[JournalObject]:
        """Read all objects, by process in order. StoreUnavailable, JournalDamaged.

        Callers share a read, but only one that begins after their call: an earlier one may have
        missed a record that they need.
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
            # lets go of the result, which may be large
            if self._current is mine:
                self._current = None
        if found.damaged:
            raise next(iter(found.damaged.values()))
        return found.objects

    async def is_there(self, obj: JournalObject) -> bool:
        """Return whether the object still exists."""
        try:
            await self._store.head(obj.key)
        except ObjectMissing:
            return False
        return True

    async def remove(self, names: Iterable[Name]) -> None:
        """Remove objects that are aggregated for all their accounts."""
        # deletion is idempotent, so two owners may remove the same objects
        await self._store.delete_many([name_object(*name) for name in names])

    async def _find_earlier(self, process: str, first: int) -> list[int]:
        """Existing objects right before the first listed one, newest first."""
        earlier: list[int] = []
        for sequence in range(first - 1, 0, -1):
            try:
                if await self._read(process, sequence) is None:
                    break
            except JournalDamaged:
                # reported by the read of that object
                pass
            earlier.append(sequence)
        return earlier

    async def _read(self, process: str, sequence: int) -> JournalObject | None:
        name = process, sequence
        if name in self._gone:
            return None
        # a cached object is valid without a read, since objects never change
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


Entry = tuple[JournalObject, list[Charge]]


@dataclass(slots=True)
class DayPart:
    """Journal objects and their charges of one account and day, sorted, by process."""

    account: str
    day: str
    by_process: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))


def divide_objects(objects: Sequence[JournalObject]) -> list[DayPart]:
    """Group objects, sorted by process, by account and day."""
    parts: dict[tuple[str, str], DayPart] = {}
    for obj in objects:
        charges: dict[tuple[str, str], list[Charge]] = {}
        for charge in (record.to_charge() for record in obj.records):
            charges.setdefault((charge.account, charge.day), []).append(charge)
        for name, some in charges.items():
            part = parts.setdefault(name, DayPart(*name))
            part.by_process[obj.process].append((obj, some))
    return list(parts.values())


async def aggregate_calls(
    kube: KubernetesClient,
    journal: JournalStore,
    part: DayPart,
    is_ended: Callable[[str], bool],
    now: datetime,
) -> tuple[int, frozenset[str]]:
    """Add the calls that are not in the day yet; their count, and processes without room.

    A process has no room while the day has its most journal marks. The mark of a process is dropped
    once `is_ended`: nothing of its journal has been left for long. Raises AggregationDeferred, and
    what `kube` and the store raise.
    """
    for _ in range(_ATTEMPTS):
        usage = await open_usage(kube, part.account, part.day)
        status = usage.get("status") or {}
        new = await _select_new(journal, part, list_journals(status))
        status = _make_room(status, new, is_ended)
        left = frozenset(_find_left(status, new))
        reached = {process: entries[-1][0].sequence for process, entries in new.items()}
        reached = {process: n for process, n in reached.items() if process not in left}
        if not reached:
            return 0, left
        charges = [c for process in reached for _, some in new[process] for c in some]
        # marks and sums in one write: a crash before or after it cannot count a call twice
        change = add_calls(status, part.day, charges, reached, now)
        try:
            await kube.patch_status(GatewayUsage.plural, usage, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown):
            continue
        return len(charges), left
    raise AggregationDeferred(
        f"{usage_name(part.account, part.day)} is written by others all the time"
    )


async def _select_new(
    journal: JournalStore, part: DayPart, marks: Mapping[str, int]
) -> dict[str, list[Entry]]:
    """Entries that are not in the sums, of processes that have any.

    A process without a mark may have had one, dropped since its journal ended: then its objects are
    gone by now.
    """
    new: dict[str, list[Entry]] = {}
    for process, entries in part.by_process.items():
        if process in marks:
            new[process] = [entry for entry in entries if entry[0].sequence > marks[process]]
        else:
            # a HEAD for each: rare, only for processes that the day has no mark of
            there = await asyncio.gather(*(journal.is_there(obj) for obj, _ in entries))
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
    """Processes without a mark for which there is no room."""
    marks = list_journals(status)
    new = [process for process in wanted if process not in marks]
    return new[max(0, MOST_JOURNALS - len(marks)) :]
