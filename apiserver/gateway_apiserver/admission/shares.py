"""What one account may take of places that all share, in this process: half, and one at least.

So whoever sends the most leaves room for the others. Used by `admission.moderations` for a
provider's turns.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from gateway_core.contract.errors import Unavailable

WAIT_SECONDS = 10.0
"""How long a call waits for a place; as long as one at a provider does for its turn."""


class Shares:
    """Accounts' shares, each made when it is first asked for and forgotten when nobody has it."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._shares: WeakValueDictionary[tuple[str, str, int], asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    def __len__(self) -> int:
        """How many are in use."""
        return len(self._shares)

    @asynccontextmanager
    async def take(self, what: str, account: str, places: int) -> AsyncIterator[None]:
        """Has one of the account's share of `places` places, which are those of `what`.

        Raises Unavailable where the account has had all of its share for too long.
        """
        most = max(1, places // 2)
        share = self._shares.get((what, account, most))
        if share is None:
            share = self._shares[what, account, most] = asyncio.Semaphore(most)
        await acquire(
            share, self._wait_seconds, "Too many such calls of this account are under way."
        )
        try:
            yield
        finally:
            share.release()


async def acquire(semaphore: asyncio.Semaphore, seconds: float, problem: str) -> None:
    """Takes a place of `semaphore`. Unavailable, with this text, where none is free in time."""
    try:
        async with asyncio.timeout(seconds):
            await semaphore.acquire()
    except TimeoutError as error:
        raise Unavailable(problem) from error
