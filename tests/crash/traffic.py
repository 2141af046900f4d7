"""A steady load of creates as an SDK sends them: a key each, repeated until acknowledged."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.servers.world import Client

CREATE_SECONDS = 120.0


@asynccontextmanager
async def traffic(client: Client, *, per_second: float) -> AsyncIterator[None]:
    """Creates tasks during the block; at its end every one of them has been acknowledged.

    Raises AssertionError where one is refused for good, or not acknowledged in two minutes.
    """
    prefix, calls = secrets.token_hex(4), list[asyncio.Task[str]]()

    async def send() -> None:
        while True:
            key = f"{prefix}-{len(calls)}"
            creation = client.create_surely(key, seconds=CREATE_SECONDS, duration_seconds=3)
            calls.append(asyncio.create_task(creation))
            await asyncio.sleep(1 / per_second)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
    ids = await asyncio.gather(*calls)
    assert len(set(ids)) == len(calls), "I9: two keys, one task"
