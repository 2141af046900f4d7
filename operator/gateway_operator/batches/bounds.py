"""Memory bounds of batches: slots for work that reads a whole batch, and windows of bytes.

Accounts share the slots fairly: an account with many batches leaves room for others. Where batches
still wait, the longest run of the account with the most makes way for one: a provider that is down
for a day does not block the batches of all others.

All runs share one budget of bytes, just as fairly. A run may exceed it by one line and one result,
since it always goes on with at least these. A run's window bounds how far finished lines are ahead
of the oldest unfinished one, because these wait in memory when the results are put in order.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from gateway_core.fair_semaphore import FairSemaphore

CHECKS_AT_ONCE = 4
RUNS_AT_ONCE = 48
"""Each keeps some MiB beside its share of the byte budget, at 50,000 lines."""
ENDINGS_AT_ONCE = 8
"""Each keeps up to 16 MiB of results that are ahead of others."""
SLICE_SECONDS = 300.0
"""The least time that a slot is held; to resume a run costs seconds."""


class Slots:
    """Slots for one kind of work, each for one batch. For one event loop."""

    def __init__(self, count: int) -> None:
        self._places = FairSemaphore(count)
        self._waits: dict[str, asyncio.Timeout] = {}
        self._held: dict[str, tuple[str, float]] = {}
        self._leaving: set[str] = set()

    @asynccontextmanager
    async def take(
        self, account: str, name: str, seconds: float | None = None
    ) -> AsyncIterator[bool]:
        """Hold a slot; False, without one, where `wake` or the end of `seconds` came first."""
        async with AsyncExitStack() as stack:
            has_place = await self._enter(stack, account, name, seconds)
            if has_place:
                self._held[name] = (account, asyncio.get_running_loop().time())
            try:
                yield has_place
            finally:
                self._held.pop(name, None)
                self._leaving.discard(name)

    def has_room(self, account: str) -> bool:
        """Return whether a batch of the account gets a slot at once."""
        return self._places.has_room(account)

    def wake(self, name: str | None = None) -> None:
        """End the wait of a batch that has changed; of all batches without a name."""
        for waiting in list(self._waits) if name is None else [name]:
            # removed: a timeout can be rescheduled only until it has fired
            wait = self._waits.pop(waiting, None)
            if wait is not None:
                wait.reschedule(asyncio.get_running_loop().time())

    def note_leaving(self, name: str) -> None:
        """Note that the batch returns its slot soon, whether another waits or not."""
        if name in self._held:
            self._leaving.add(name)

    def is_due(self, name: str) -> bool:
        """Return whether the batch has to give its slot to one that waits; True once for each."""
        if self._places.waiting <= len(self._leaving):
            return False
        staying = {n: held for n, held in self._held.items() if n not in self._leaving}
        counts = Counter(account for account, _ in staying.values())
        if name not in staying:
            return False
        first = min(staying, key=lambda n: (-counts[staying[n][0]], staying[n][1]))
        age = asyncio.get_running_loop().time() - staying[first][1]
        if first != name or age < SLICE_SECONDS:
            return False
        self._leaving.add(name)
        return True

    async def _enter(
        self, stack: AsyncExitStack, account: str, name: str, seconds: float | None
    ) -> bool:
        try:
            async with asyncio.timeout(seconds) as wait:
                self._waits[name] = wait
                await stack.enter_async_context(self._places.take(account))
        except TimeoutError:
            return False
        finally:
            self._waits.pop(name, None)
        return True


class BatchSlots:
    """The slots of one process."""

    def __init__(self) -> None:
        self.checks = Slots(CHECKS_AT_ONCE)
        self.runs = Slots(RUNS_AT_ONCE)
        self.endings = Slots(ENDINGS_AT_ONCE)

    def wake(self, name: str | None = None) -> None:
        """End the wait of a batch that has changed; of all batches without a name."""
        for slots in (self.checks, self.runs, self.endings):
            slots.wake(name)


MOST_BYTES = 64 * 1024 * 1024


@dataclass(eq=False)
class Share:
    """One run's part of the byte budget, to be closed at its end."""

    budget: FairSemaphore
    account: str
    _held: int = field(default=0, init=False)

    @property
    def has_room(self) -> bool:
        """True if the run may use more."""
        return self.budget.has_room(self.account)

    def take(self, size: int) -> None:
        """Use `size` bytes more."""
        self._held += size
        self.budget.acquire_nowait(self.account, size)

    def give(self, size: int) -> None:
        """Return `size` bytes."""
        self._held -= size
        self.budget.release(self.account, size)

    def close(self) -> None:
        """Return all bytes."""
        self.give(self._held)


MOST_LINES_AHEAD = 10_000
MOST_BYTES_AHEAD = 16 * 1024 * 1024
MOST_BYTES_UNDER_WAY = 16 * 1024 * 1024
"""Bytes of lines in flight: each stays in memory until it is answered, hours in an outage."""


class Window:
    """Lines from the oldest one in flight on, by their place among the lines that are not blank."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._under_way: dict[int, int] = {}
        self._line_bytes = 0
        self._ahead: dict[int, int] = {}
        self._bytes = 0
        self._begun = 0

    def __len__(self) -> int:
        """Return the number of lines in flight."""
        return len(self._under_way)

    def has_room(self) -> bool:
        """Return whether the next line may begin."""
        if not self._under_way:
            return True
        if self._line_bytes >= MOST_BYTES_UNDER_WAY or not self._share.has_room:
            return False
        oldest = next(iter(self._under_way))
        return self._begun - oldest < MOST_LINES_AHEAD and self._bytes < MOST_BYTES_AHEAD

    def begin(self, place: int, size: int) -> None:
        """Begin a line of `size` bytes; lines begin in order."""
        self._under_way[place] = size
        self._line_bytes += size
        self._share.take(size)
        self._begun = place + 1

    def end(self, place: int, size: int) -> None:
        """End a line with a result of `size` bytes."""
        kept = self._under_way.pop(place)
        self._line_bytes -= kept
        self._share.give(kept)
        self._ahead[place] = size
        self._bytes += size
        oldest = next(iter(self._under_way), self._begun)
        if place < oldest:
            # it was the oldest one: results up to the next line in flight are no longer ahead
            for known in [p for p in self._ahead if p < oldest]:
                self._bytes -= self._ahead.pop(known)
