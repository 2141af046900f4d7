"""Slots for work that reads a whole batch, which bound its memory for all batches together.

Accounts share them fairly: an account with many batches leaves room for others. Where batches still
wait, the longest run of the account with the most makes way for one: a provider that is down for
a day does not block the batches of all others.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gateway_core.concurrency import FairSemaphore

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
        self._changes: dict[str, asyncio.Event] = {}
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

    def wake(self, name: str) -> None:
        """End the batch's wait, if it waits: it has changed."""
        change = self._changes.get(name)
        if change is not None:
            change.set()

    def wake_all(self) -> None:
        """End all waits."""
        for change in self._changes.values():
            change.set()

    def note_leaving(self, name: str) -> None:
        """Note that the batch returns its slot soon, whether another waits or not."""
        if name in self._held:
            self._leaving.add(name)

    def is_due(self, name: str) -> bool:
        """Whether the batch has to give its slot to one that waits; True once for each."""
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
        change = self._changes[name] = asyncio.Event()
        entering = asyncio.create_task(stack.enter_async_context(self._places.take(account)))
        waking = asyncio.create_task(change.wait())
        try:
            await asyncio.wait(
                (entering, waking), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            del self._changes[name]
            entering.cancel()
            waking.cancel()
            await asyncio.gather(entering, waking, return_exceptions=True)
        return not entering.cancelled()


class BatchSlots:
    """The slots of one process."""

    def __init__(self) -> None:
        self.checks = Slots(CHECKS_AT_ONCE)
        self.runs = Slots(RUNS_AT_ONCE)
        self.endings = Slots(ENDINGS_AT_ONCE)

    def wake(self, name: str | None = None) -> None:
        """End the wait of a batch that has changed; of all batches without a name."""
        for slots in (self.checks, self.runs, self.endings):
            if name is None:
                slots.wake_all()
            else:
                slots.wake(name)
