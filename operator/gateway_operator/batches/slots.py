"""Places for work that goes through a whole batch, so that its memory is bounded for all together.

Accounts share them as `FairSemaphore` tells: one that has many batches leaves room for the others.
Where batches still wait, the run that has gone on longest, of the account that has most, makes way:
a provider that answers nobody for a day keeps no other batch waiting as long.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from gateway_core.concurrency import FairSemaphore

SLICE_SECONDS = 300.0
"""For which a place is held at least; to take up a run again costs seconds."""


class Slots:
    """So many places, each for one batch. For one event loop."""

    def __init__(self, count: int) -> None:
        self._places = FairSemaphore(count)
        self._changes: dict[str, asyncio.Event] = {}
        self._held: dict[str, tuple[str, float]] = {}
        self._leaving: set[str] = set()

    @asynccontextmanager
    async def take(
        self, account: str, name: str, seconds: float | None = None
    ) -> AsyncIterator[bool]:
        """Holds a place; False, without one, where `wake` or the end of `seconds` came before."""
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
        """The batch has changed: if it waits, it waits no longer."""
        change = self._changes.get(name)
        if change is not None:
            change.set()

    def wake_all(self) -> None:
        """Has nobody wait any longer."""
        for change in self._changes.values():
            change.set()

    def note_leaving(self, name: str) -> None:
        """The batch is to give its place back before long, whoever waits."""
        if name in self._held:
            self._leaving.add(name)

    def is_due(self, name: str) -> bool:
        """Whether the batch is to give up its place to one that waits; told once for each."""
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
