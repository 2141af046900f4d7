"""Long bodies on their way into the store: how slow they may be, how many an account may have.

The store takes in so many streams at a time, whoever they are from. So none may go on for ever, and
an account gets one more only while it has fewer than are free. What is on its way out has places of
its own.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Receive

from gateway_core.contract.errors import Unavailable
from gateway_core.usecases.places import NoPlace, Places

IDLE_SECONDS = 60.0
"""How long the next bytes of a body may take to come, and all of them beside what they earn."""
SLOWEST_BYTES = 8 * 1024
"""Bytes that earn one second more: less than any line gives, as a slow one takes its account's own
places alone."""
WAIT_SECONDS = 240.0
"""How long a further one waits for one of them to end. It costs nothing: its body is not read
meanwhile. Less than the 300 s that docs/install.md has proxies wait."""
MOST_WAITING = 64
"""Of one account."""


class PacedBody:
    """Receives a body for as long as it comes fast enough: 60 s, and a second for each 8 KiB.

    Only the time counts in which this process waits for its client.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = IDLE_SECONDS

    async def __call__(self) -> Message:
        """The next message, as ASGI has it. Unavailable where it does not come in time."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(max(0.0, min(IDLE_SECONDS, self._left))):
                message = await self._receive()
        except TimeoutError:
            raise _too_slow() from None
        self._left += len(message.get("body", b"")) / SLOWEST_BYTES - (clock() - began)
        if self._left <= 0 and message.get("more_body"):
            raise _too_slow()
        return message


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


def _too_slow() -> Unavailable:
    # not the client's mistake: its line may be better the next time, and SDKs try again
    return Unavailable("The rest of the body did not come in time.")


def _too_many() -> Unavailable:
    return Unavailable("Too many streams are under way, of this account or of all.")
