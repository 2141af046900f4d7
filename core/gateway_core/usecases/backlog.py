"""Reading what the usage journal has that is not removed yet, for folds and for rebuilds.

A listing tells all that was put before it began (docs/storage.md). Numbers before others that it
leaves out all the same are asked for by name: what is missing then was removed, and that is done
only once it has been folded. Nobody can ask for what a listing leaves out at its end.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway_core.domain.journal import (
    PREFIX,
    JournalDamaged,
    JournalObject,
    decode_object,
    find_missing,
    name_object,
    parse_name,
)
from gateway_core.ports.objects import ObjectMissing, ObjectStore

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
