"""Long bodies on their way into the store: how many an account may have.

The store takes in so many streams at a time, whoever they are from. `connections.bodies` ends slow
ones, and an account gets one more only while it has fewer than are free. Downloads have places of
their own (`connections.downloads`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway_core.concurrency import NoPlace, Places
from gateway_core.contract.errors import Unavailable

WAIT_SECONDS = 240.0
"""How long a further one waits for one of them to end. It costs nothing: its body is not read
meanwhile. Less than the 300 s that docs/install.md has proxies wait."""
MOST_WAITING = 64
"""Of one account."""


class StreamPlaces:
    """Places for the streams that are under way in this process."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @asynccontextmanager
    async def take(self, account: str) -> AsyncIterator[None]:
        """For one stream. A further one waits.

        Unavailable where it does so for 240 s, or where 64 of the account do already.
        """
        if self._places.count_waiting(account) >= MOST_WAITING:
            raise _too_many()
        try:
            async with self._places.take(account, WAIT_SECONDS):
                yield
        except NoPlace:
            raise _too_many() from None


def _too_many() -> Unavailable:
    return Unavailable("Too many streams are under way, of this account or of all.")
