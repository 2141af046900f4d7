"""Limits on concurrent use of the object store, Kubernetes lists and providers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from gateway_core.api.errors import Unavailable
from gateway_core.concurrency import FairSemaphore
from gateway_core.storage.objects import MOST_STREAMS, StoreUnavailable

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


MOST_LISTS = 4


class ListLimiter(FairSemaphore):
    """Bounds concurrent full-list requests to the Kubernetes API: one for each account."""

    def __init__(self, total: int = MOST_LISTS) -> None:
        super().__init__(total, alone=total, per_holder=1)


STREAM_WAIT_SECONDS = 240.0
"""How long a stream waits for another to end. It costs nothing: its body is not read meanwhile.
Less than the 300 s that docs/install.md lets proxies wait."""
MOST_STREAM_WAITERS = 64
"""Waiting streams of one account."""


class StreamLimiter(FairSemaphore):
    """Bounds the streams between clients and the object store. `take` raises Unavailable."""

    def __init__(self, total: int = MOST_STREAMS, *, per_holder: int | None = None) -> None:
        super().__init__(
            total,
            per_holder=per_holder,
            seconds=STREAM_WAIT_SECONDS,
            most_waiting=MOST_STREAM_WAITERS,
            error=lambda: Unavailable("Too many streams are under way, of this account or of all."),
        )


PROVIDER_WAIT_SECONDS = 10.0
"""How long a call waits for its account's share; as long as at the provider's own limit."""


class AccountLimiter:
    """Bounds each account to half of a provider's concurrent calls."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], FairSemaphore] = {}

    def __len__(self) -> int:
        """Calls in flight."""
        return sum(share.held for share in self._shares.values())

    def take(self, provider: str, account: str, calls: int) -> AbstractAsyncContextManager[None]:
        """Hold one of the account's share of the `calls` a provider takes. Unavailable."""
        most = max(1, calls // 2)
        share = self._shares.get((provider, most))
        if share is None:
            share = self._shares[provider, most] = FairSemaphore(
                sys.maxsize,
                per_holder=most,
                seconds=PROVIDER_WAIT_SECONDS,
                error=lambda: Unavailable("Too many such calls of this account are under way."),
            )
        return share.take(account)
