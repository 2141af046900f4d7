"""A bounded number of places that those who are slow cannot keep from the others."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoPlace(Exception):
    """None came in time."""


class Places:
    """Whoever holds some gets one more only while that are fewer than the free ones.

    So a single holder gets half of them, two get a third each, and so on: there is one for a
    newcomer as long as fewer than `count` hold any.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._held: Counter[object] = Counter()
        self._waiting: dict[object, deque[asyncio.Future[None]]] = {}

    @property
    def running(self) -> int:
        """How many places are held."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return sum(map(len, self._waiting.values()))

    def count_waiting(self, holder: object) -> int:
        """How many of the holder's wait."""
        return len(self._waiting.get(holder, ()))

    @asynccontextmanager
    async def take(self, holder: object, seconds: float | None = None) -> AsyncIterator[None]:
        """Waits for a place and holds it; those of one holder in the order of their coming.

        NoPlace where it has to wait for longer than that.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._enter(holder)
        except TimeoutError:
            raise NoPlace from None
        try:
            yield
        finally:
            self._leave(holder)

    async def _enter(self, holder: object) -> None:
        if holder not in self._waiting and self._may_enter(holder):
            self._give(holder)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(holder, turn)
            else:  # it came in the same instant
                self._leave(holder)
            raise

    def _may_enter(self, holder: object) -> bool:
        return self._held[holder] < self._free

    def _give(self, holder: object) -> None:
        self._free -= 1
        self._held[holder] += 1

    def _leave(self, holder: object) -> None:
        self._free += 1
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]
        while entitled := [one for one in self._waiting if self._may_enter(one)]:
            poorest = min(entitled, key=lambda one: self._held[one])
            turns = self._waiting.pop(poorest)
            turn = turns.popleft()
            if turns:
                # behind the others, as many may hold as little
                self._waiting[poorest] = turns
            if not turn.cancelled():
                self._give(poorest)
                turn.set_result(None)

    def _withdraw(self, holder: object, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(holder, deque())
        # one that was cancelled may have been passed over already
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[holder]


class OwnPlaces(Places):
    """`count` places of each holder, whatever the others have."""

    def _may_enter(self, holder: object) -> bool:
        return self._held[holder] < self._count


class CommonPlaces(Places):
    """All of them, to whoever comes; one that gets free is given to who holds least."""

    def _may_enter(self, holder: object) -> bool:
        return self._free > 0
