"""Tasks of an account by their creation, kept in memory: a list of thousands takes a second.

The Kubernetes API lists by name alone. So the positions of an account's tasks are listed once, when
one of its pages is opened, and then follow the table of open tasks, where each task begins. A task
that is deleted is found missing when it is to be shown.
"""

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial

from gateway_core.concurrency import SingleFlight
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import Position
from gateway_core.kube.read_through import QUIET_SECONDS
from gateway_core.kube.repository import TASKS, Repository
from gateway_core.tasks.finder import TaskRecord

MOST_ACCOUNTS, MOST_POSITIONS = 64, 200_000
"""Kept at once, of all accounts; those go first whose pages were opened longest ago."""
LIFE_SECONDS = 600.0
"""Time after which an account is listed again: a watch that was interrupted may have missed one
that was made and settled meanwhile."""


class TaskIndex:
    """Positions of tasks, by account."""

    def __init__(
        self,
        repository: Repository,
        table: Cache[TaskRecord],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._table = table
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, list[Position]]] = OrderedDict()
        self._loads = SingleFlight[list[Position]]()
        self._made: dict[str, set[Position]] = {}
        table.subscribe(self._note)

    async def list_before(
        self, account: str, position: Position | None, limit: int
    ) -> list[Position]:
        """At most `limit` tasks older than a position, the newest first. Unavailable."""
        kept = await self._find(account)
        end = len(kept) if position is None else bisect_left(kept, position)
        return kept[max(0, end - limit) : end][::-1]

    def drop(self, account: str, gone: Collection[Position]) -> None:
        """Forget tasks that are there no more."""
        known = self._kept.get(account)
        if known is not None and gone:
            known[1][:] = [position for position in known[1] if position not in gone]

    async def _find(self, account: str) -> list[Position]:
        known = self._kept.get(account)
        is_young = known is not None and self._clock() - known[0] < LIFE_SECONDS
        if known is None or not is_young or self._table.staleness > QUIET_SECONDS:
            return await self._loads.run(account, partial(self._load, account))
        self._kept.move_to_end(account)
        return known[1]

    async def _load(self, account: str) -> list[Position]:
        # what is made while the list is read may stand in one of the two alone
        made = self._made[account] = set()
        try:
            found = await self._repository.list_positions(TASKS, account)
        finally:
            del self._made[account]
        kept = sorted({*found, *made})
        self._kept[account] = self._clock(), kept
        self._kept.move_to_end(account)
        total = sum(len(positions) for _, positions in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > MOST_ACCOUNTS or total > MOST_POSITIONS):
            _, (_, oldest) = self._kept.popitem(last=False)
            total -= len(oldest)
        return kept

    def _note(self, name: str) -> None:
        record = self._table.get(name)
        if record is None or record.position is None:
            return
        if (made := self._made.get(record.account)) is not None:
            made.add(record.position)
        if (known := self._kept.get(record.account)) is not None:
            kept = known[1]
            place = bisect_left(kept, record.position)
            if place == len(kept) or kept[place] != record.position:
                kept.insert(place, record.position)
