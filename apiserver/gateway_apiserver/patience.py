"""How long requests wait for the object store; used by `finder`, `admission` and the media host."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway_core.ports.objects import StoreUnavailable

ARCHIVE_SECONDS = 2.0
INPUT_SECONDS = 5.0
MEDIA_SECONDS = 10.0
MOST_WAITING = 1024


class Patience:
    """Gives a store up for a request that has waited long enough, or where too many wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = 0

    @asynccontextmanager
    async def bound(self) -> AsyncIterator[None]:
        """For one use of the store. StoreUnavailable after the time, or at once in a crowd."""
        if self._waiting >= MOST_WAITING:
            raise StoreUnavailable(f"{self._waiting} requests wait for it")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError as error:
            raise StoreUnavailable(f"no answer within {self._seconds:g} s") from error
        finally:
            self._waiting -= 1
