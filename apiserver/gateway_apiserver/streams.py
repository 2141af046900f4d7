"""Long bodies on their way into the store: how slow they may be, how many an account may have.

The store takes in so many streams at a time, whoever they are from. So none may go on for ever, and
no account may have all of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Message, Receive

from gateway_core.contract.errors import InvalidRequest, Unavailable

IDLE_SECONDS = 60.0
"""How long the next bytes of a body may take to come, and all of them beside what they earn."""
SLOWEST_BYTES = 64 * 1024
"""Bytes that earn one second more."""
MOST_STREAMS = 8
"""Of one account in one process; the store takes in 32."""
WAIT_SECONDS = 10.0
"""How long a further one waits for one of them to end."""


class PacedBody:
    """Receives a body for as long as it comes fast enough: 60 s, and a second for each 64 KiB.

    Only the time counts in which this process waits for its client.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = IDLE_SECONDS

    async def __call__(self) -> Message:
        """The next message, as ASGI has it. InvalidRequest where it does not come in time."""
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
    """Places for the streams of each account that are under way in this process."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self._most = most
        self._accounts: dict[str, _Places] = {}

    @asynccontextmanager
    async def take(self, account: str) -> AsyncIterator[None]:
        """For one stream. A further one waits; Unavailable where none ends within 10 s."""
        places = self._accounts.setdefault(account, _Places(asyncio.Semaphore(self._most)))
        places.users += 1
        try:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await places.free.acquire()
            except TimeoutError:
                raise Unavailable(
                    f"At most {self._most} streams of an account are taken at a time.",
                    retry_after=1,
                ) from None
            try:
                yield
            finally:
                places.free.release()
        finally:
            places.users -= 1
            if not places.users:
                del self._accounts[account]


@dataclass(slots=True)
class _Places:
    """Those of one account; `users` have one or wait for one."""

    free: asyncio.Semaphore
    users: int = 0


def _too_slow() -> InvalidRequest:
    return InvalidRequest("The rest of the body did not come in time.")
