"""Folds the usage journal into usage objects, and removes what is folded. Shard 0's owner does it.

Two that do it at a time do no harm. Whoever is killed leaves objects that are folded again, which
adds nothing to the days whose marks say so.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Sequence

import structlog

from gateway_core.domain.journal import JournalDamaged, JournalObject
from gateway_core.ports.objects import StoreUnavailable
from gateway_core.ports.records import RecordError
from gateway_core.usecases.backlog import Backlog
from gateway_core.usecases.callfolds import DayPart, divide_objects, fold_calls
from gateway_operator.controllers.tasks.tools import Tools

MOST_OBJECTS = 400
"""Objects in one round, at most."""
IDLE_SECONDS = 5.0
"""From one look to the next while nothing is found; a listing of a bucket costs money."""
ENDED_SECONDS = 3600.0
"""How long nothing has to be left of a process's journal for its marks to be dropped: whoever has
read what was there, a rebuild or a halted owner, is done with it by then."""
_FOLDS_AT_ONCE = 8

_log = structlog.get_logger(__name__)


class Bookkeeping:
    """Rounds over the journal, each from its oldest objects on."""

    def __init__(self, tools: Tools, pause_seconds: float, *, most: int = MOST_OBJECTS) -> None:
        self._tools = tools
        self._backlog = Backlog(tools.store)
        self._pause = pause_seconds
        self._most = most
        self._begun = time.monotonic()
        self._last_seen: dict[str, float] = {}

    async def run(self) -> None:
        """Folds until cancelled, whatever fails."""
        while True:
            begun = time.monotonic()
            found = 0
            try:
                found = await self.fold()
            except (RecordError, StoreUnavailable) as error:
                _log.warning("the journal is not folded", error=str(error))
            except JournalDamaged as error:
                _log.error("the journal is damaged and not folded", error=str(error))
            except Exception:  # the boundary: what cannot be folded now is there to be looked at
                _log.exception("the journal is not folded")
            # a quarter of the time at most: accounts may be many, and the work on tasks goes first
            took = time.monotonic() - begun
            await asyncio.sleep(max(self._pause if found else IDLE_SECONDS, 3 * took))

    async def fold(self) -> int:
        """One round; how many objects there were in it. What the ports raise; JournalDamaged."""
        numbers = await self._backlog.list_sequences()
        self._note_processes(numbers)
        self._tools.metrics.journal_objects.set(sum(map(len, numbers.values())))
        objects = await self._read(numbers)
        stuck: set[tuple[str, int]] = set()
        slots = asyncio.Semaphore(_FOLDS_AT_ONCE)

        async def fold_part(part: DayPart) -> None:
            async with slots:
                for process in await self._fold_part(part):
                    stuck.update((process, obj.sequence) for obj, _ in part.by_process[process])

        await asyncio.gather(*(fold_part(part) for part in divide_objects(objects)))
        self._tools.failpoints.reach("before-journal-removal")
        await self._backlog.remove(_select_done(objects, stuck))
        self._tools.failpoints.reach("after-journal-removal")
        return len(objects)

    async def _read(self, numbers: dict[str, list[int]]) -> list[JournalObject]:
        """The oldest of each process, in order, as many of each; of a damaged journal none."""
        share = max(1, self._most // max(1, len(numbers)))
        objects: list[JournalObject] = []
        for process, sequences in numbers.items():
            try:
                objects += await self._backlog.read((process, n) for n in sequences[:share])
            except JournalDamaged as error:
                _log.error("a journal is damaged and not folded any more", error=str(error))
        return objects

    async def _fold_part(self, part: DayPart) -> Collection[str]:
        """The processes of which not all could be folded."""
        tools, now = self._tools, self._tools.now()
        try:
            added, left = await fold_calls(tools.records, self._backlog, part, self._is_ended, now)
        except RecordError as error:
            _log.info("calls not folded", account=part.account, day=part.day, error=str(error))
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


def _select_done(
    objects: Sequence[JournalObject], stuck: set[tuple[str, int]]
) -> list[JournalObject]:
    """Of each process those before the first one that was not folded everywhere."""
    done: list[JournalObject] = []
    halted: set[str] = set()
    for obj in objects:
        if (obj.process, obj.sequence) in stuck:
            halted.add(obj.process)
        if obj.process not in halted:
            done.append(obj)
    return done
