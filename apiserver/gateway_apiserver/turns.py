"""Turns at what costs the Kubernetes API and this process much: lists of what an account has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

MOST_AT_ONCE = 4


class Turns:
    """A few at once in a process, and one at a time of each account."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        self._all = asyncio.Semaphore(most)
        self._accounts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, account: str) -> AsyncIterator[None]:
        """Goes around one list of the account's; whoever waits bounds the time."""
        lock = self._accounts.get(account)
        if lock is None:
            lock = self._accounts[account] = asyncio.Lock()
        async with lock, self._all:
            yield
