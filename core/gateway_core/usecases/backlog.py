"""Reading what the usage journal has that is not removed yet, for folds and for rebuilds.

A listing tells all that was put before it began (docs/storage.md). Numbers before others that it
leaves out all the same are asked for by name: what is missing then was removed, and that is done
only once it has been folded. Nobody can ask for what a listing leaves out at its end.
"""

import asyncio
from collections.abc import Iterable

from gateway_core.domain.journal import (
    PREFIX,
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


class Backlog:
    """The journal's objects. What was read is kept as long as it is listed, as it never changes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], JournalObject] = {}
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[list[JournalObject]] | None = None

    async def list_sequences(self) -> dict[str, list[int]]:
        """The numbers that are to be read, in order, by process. StoreUnavailable; JournalDamaged.

        Those that the listing leaves out are among them, whether they are there or not.
        """
        found: dict[str, list[int]] = {}
        async for entry in self._store.list_entries(PREFIX):
            parts = parse_name(entry.key)
            if parts is not None:
                found.setdefault(parts[0], []).append(parts[1])
        listed = {(process, n) for process, numbers in found.items() for n in numbers}
        self._known = {name: obj for name, obj in self._known.items() if name in listed}
        for process, sequences in found.items():
            missing = find_missing(sequences, _MOST_MISSING)
            earlier = await self._find_earlier(process, sequences[0])
            found[process] = sorted({*sequences, *missing, *earlier})
        return found

    async def read(self, names: Iterable[tuple[str, int]]) -> list[JournalObject]:
        """Those of the objects that are there, in that order. StoreUnavailable; JournalDamaged."""
        slots = asyncio.Semaphore(_READS_AT_ONCE)

        async def read_one(process: str, sequence: int) -> JournalObject | None:
            async with slots:
                return await self._read(process, sequence)

        found = await asyncio.gather(*(read_one(*name) for name in names))
        self._forget_beyond()
        return [obj for obj in found if obj is not None]

    async def read_all(self) -> list[JournalObject]:
        """All objects, by process in order, as they are at some moment after this was called.

        Who asks while a reading is under way shares the next with all who do: the one under way
        may miss what was stored before he asked, and nobody else would make up for that.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read_next())
        # shielded: who gives up must not take it from the others
        return await asyncio.shield(self._next)

    async def _read_next(self) -> list[JournalObject]:
        async with self._reading:
            self._next = None
            numbers = await self.list_sequences()
            return await self.read((p, n) for p, sequences in numbers.items() for n in sequences)

    async def is_there(self, obj: JournalObject) -> bool:
        """Whether the object has not been removed."""
        try:
            await self._store.head(obj.key)
        except ObjectMissing:
            return False
        return True

    async def remove(self, objects: Iterable[JournalObject]) -> None:
        """Removes objects that are folded for all their accounts."""
        await self._store.delete_many([obj.key for obj in objects])

    async def _find_earlier(self, process: str, first: int) -> list[int]:
        """Numbers right before the first one listed that are there all the same."""
        earlier: list[int] = []
        for sequence in range(first - 1, 0, -1):
            if await self._read(process, sequence) is None:
                break
            earlier.append(sequence)
        return earlier

    async def _read(self, process: str, sequence: int) -> JournalObject | None:
        known = self._known.get((process, sequence))
        if known is not None:
            return known
        key = name_object(process, sequence)
        try:
            obj = decode_object(key, await self._store.get(key))
        except ObjectMissing:
            return None
        self._known[process, sequence] = obj
        return obj

    def _forget_beyond(self) -> None:
        left = _MOST_KEPT
        for name, obj in list(self._known.items()):
            left -= len(obj.records) + 1
            if left < 0:
                del self._known[name]
