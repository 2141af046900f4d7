"""A semaphore that shares its units fairly among holders."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self


class AcquireTimeout(Exception):
    """No unit of a semaphore became free in time."""


class FairSemaphore:
    """Semaphore of `total` units whose holders (accounts, mostly) share it fairly.

    A holder may take more only while its part of what it and the free units are together is at most
    `alone / total`, by default one half: then a single holder gets half of all, the next one half
    of the rest, and a newcomer finds a free unit until about log2(total) holders hold their part.
    `alone=total` lets any holder take whatever is free. `per_holder` bounds each holder besides.

    Of the waiting holders the one with the fewest units is served first, those with equally many in
    turn, each in the order of its calls; one that waits for several units is not passed by others,
    unless its own units are in its way. `take` raises `error()` after `seconds`, or at once where
    `most_waiting` calls of the holder wait already. For one event loop.
    """

    def __init__(
        self,
        total: int,
        *,
        alone: int | None = None,
        per_holder: int | None = None,
        seconds: float | None = None,
        most_waiting: int = sys.maxsize,
        error: Callable[[], Exception] = AcquireTimeout,
    ) -> None:
        self._total = total
        self._free = total
        # the ratio of a holder's units to the free ones, which `resize` keeps
        self._part, self._rest = (1, 1) if alone is None else (alone, max(0, total - alone))
        self._per_holder = per_holder
        self._seconds = seconds
        self._most_waiting = most_waiting
        self._error = error
        self._held: Counter[object] = Counter()
        self._waiting: dict[object, deque[tuple[asyncio.Future[None], int]]] = {}

    @property
    def held(self) -> int:
        """Units in use."""
        return self._total - self._free

    @property
    def waiting(self) -> int:
        """Calls that wait for a unit."""
        return sum(map(len, self._waiting.values()))

    def has_room(self, holder: object, size: int = 1) -> bool:
        """Return whether the holder may take `size` units now."""
        if size > self._free or not self._may_hold(holder, size):
            return False
        wanted = self._held[holder] + size
        return (wanted - 1) * self._rest < (self._free - size + 1) * self._part

    def acquire_nowait(self, holder: object, size: int = 1) -> None:
        """Take `size` units, be there room or not; ask `has_room` first."""
        self._free -= size
        self._held[holder] += size

    async def acquire(self, holder: object, size: int = 1) -> None:
        """Wait for `size` units and take them, to be returned with `release`."""
        if not self._waiting and self.has_room(holder, size):
            self.acquire_nowait(holder, size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append((turn, size))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._withdraw(holder, (turn, size))
            else:  # the units were given in the same loop iteration as the cancellation
                self.release(holder, size)
            raise

    def release(self, holder: object, size: int = 1) -> None:
        """Return `size` units of the holder and serve the waiting holders."""
        self._free += size
        self._held[holder] -= size
        if not self._held[holder]:
            del self._held[holder]
        self._serve()

    def resize(self, total: int) -> None:
        """Change the number of units; holders keep theirs, even beyond the new number."""
        self._free += total - self._total
        self._total = total
        self._serve()

    async def wait(self, holder: object, size: int = 1) -> None:
        """Take `size` units, to be returned with `release`, within the bounds of the wait."""
        if not self._waiting and self.has_room(holder, size):
            self.acquire_nowait(holder, size)
            return
        if len(self._waiting.get(holder, ())) >= self._most_waiting:
            raise self._error()
        try:
            async with asyncio.timeout(self._seconds):
                await self.acquire(holder, size)
        except TimeoutError:
            raise self._error() from None

    @asynccontextmanager
    async def take(self, holder: object, size: int = 1) -> AsyncIterator[None]:
        """Hold `size` units for the block, after the wait for them."""
        await self.wait(holder, size)
        try:
            yield
        finally:
            self.release(holder, size)

    def _may_hold(self, holder: object, size: int) -> bool:
        # a Counter returns 0 for an unknown key without storing it
        return self._per_holder is None or self._held[holder] + size <= self._per_holder

    def _serve(self) -> None:
        while self._free > 0 and self._waiting:
            holders = [
                holder
                for holder, turns in self._waiting.items()
                if self._may_hold(holder, turns[0][1])
            ]
            if not holders:
                return
            poorest = min(holders, key=self._held.__getitem__)
            # of single units, a holder with fewer has room whenever one with more has
            if not self.has_room(poorest, self._waiting[poorest][0][1]):
                return
            turns = self._waiting.pop(poorest)
            turn, size = turns.popleft()
            if turns:
                # behind other holders with equally few units
                self._waiting[poorest] = turns
            if not turn.cancelled():
                self.acquire_nowait(poorest, size)
                turn.set_result(None)

    def _withdraw(self, holder: object, entry: tuple[asyncio.Future[None], int]) -> None:
        turns = self._waiting.get(holder, deque())
        # `_serve` may have dropped a cancelled turn already
        if entry in turns:
            turns.remove(entry)
            if not turns:
                del self._waiting[holder]
            # others may have waited behind it
            self._serve()


class HeldUnits:
    """Units of semaphores that a request holds until `release`, or to the end of a `with`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[tuple[FairSemaphore, object, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def take(self, semaphore: FairSemaphore, holder: object, size: int = 1) -> None:
        """Hold `size` units more, after the wait for them, which raises as `FairSemaphore.wait`."""
        await semaphore.wait(holder, size)
        self._held.append((semaphore, holder, size))

    def hand_over(self) -> "HeldUnits":
        """Return all units, to be released by another; none stay here."""
        other = HeldUnits()
        self._held, other._held = other._held, self._held
        return other

    def release(self) -> None:
        """Return all units. Repeatable."""
        while self._held:
            semaphore, holder, size = self._held.pop()
            semaphore.release(holder, size)
