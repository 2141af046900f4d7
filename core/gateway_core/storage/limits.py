"""Limits on concurrent use of the object store: waiting requests, streams, downloads."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gateway_core.api.errors import Unavailable
from gateway_core.fair_semaphore import FairSemaphore
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadBounds:
    """The bounds of one process."""

    downloads: int = 560
    per_address: int = 512
    per_link: int = 512


class Downloads:
    """Running downloads of one process; `refused` counts downloads beyond the bounds."""

    def __init__(self, bounds: DownloadBounds) -> None:
        self._addresses = FairSemaphore(bounds.downloads, alone=bounds.per_address)
        self._links = FairSemaphore(bounds.downloads, alone=bounds.per_link)
        self.refused = 0

    def __len__(self) -> int:
        return self._links.held

    @contextmanager
    def take(self, address: str, link: str) -> Iterator[None]:
        """Yield a place for one download. Unavailable where there is none."""
        if not (self._addresses.has_room(address) and self._links.has_room(link)):
            self.refused += 1
            raise Unavailable("Too many downloads are under way, of this file or to this client.")
        self._addresses.acquire_nowait(address)
        self._links.acquire_nowait(link)
        try:
            yield
        finally:
            self._addresses.release(address)
            self._links.release(link)
