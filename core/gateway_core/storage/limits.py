"""Limits on concurrent use of the object store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway_core.api.errors import Unavailable
from gateway_core.concurrency import FairSemaphore
from gateway_core.storage.objects import MOST_STREAMS, StoreUnavailable

ARCHIVE_SECONDS = 2.0
INPUT_SECONDS = 5.0
MEDIA_SECONDS = 10.0
MOST_STORE_WAITERS = 1024


class StoreTimeout:
    """Bounds the time that requests wait for the object store, and how many wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = 0

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """Bound one use of the store. StoreUnavailable after the time, or if too many wait."""
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
