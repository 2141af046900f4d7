"""Limits on concurrent use of the object store, Kubernetes lists and providers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from gateway_core.api.errors import Unavailable
from gateway_core.concurrency import NoPlace, Places
from gateway_core.storage.objects import StoreUnavailable

ARCHIVE_SECONDS = 2.0
INPUT_SECONDS = 5.0
MEDIA_SECONDS = 10.0
MOST_STORE_WAITERS = 1024


class StoreTimeout:
    """Gives a store up for a request that has waited long enough, or where too many wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = 0

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """For one use of the store. StoreUnavailable after the time, or at once in a crowd."""
        if self._waiting >= MOST_STORE_WAITERS:
            raise StoreUnavailable(f"{self._waiting} requests wait for it")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {self._seconds:g} s") from error
        finally:
            self._waiting -= 1


MOST_AT_ONCE = 4


class ListLimiter:
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


STREAM_WAIT_SECONDS = 240.0
"""How long a further one waits for one of them to end. It costs nothing: its body is not read
meanwhile. Less than the 300 s that docs/install.md has proxies wait."""
MOST_STREAM_WAITERS = 64
"""Of one account."""


class StreamLimiter:
    """Places for the streams that are under way in this process."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @asynccontextmanager
    async def take(self, account: str) -> AsyncIterator[None]:
        """For one stream. A further one waits.

        Unavailable where it does so for 240 s, or where 64 of the account do already.
        """
        if self._places.count_waiting(account) >= MOST_STREAM_WAITERS:
            raise _too_many()
        try:
            async with self._places.take(account, STREAM_WAIT_SECONDS):
                yield
        except NoPlace:
            raise _too_many() from None


def _too_many() -> Unavailable:
    return Unavailable("Too many streams are under way, of this account or of all.")


PROVIDER_WAIT_SECONDS = 10.0
"""How long a call waits for a place; as long as one at a provider does for its turn."""


class AccountLimiter:
    """Accounts' shares, each made when it is first asked for and forgotten when nobody has it."""

    def __init__(self, wait_seconds: float = PROVIDER_WAIT_SECONDS) -> None:
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
