"""Creates as an SDK sends them: under a key each, repeated until they are decided."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.servers.tenants import open_tenant
from tests.servers.world import Answer, Client

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


async def ask_until_decided(
    ask: Callable[..., Awaitable[Answer]], *given: Any, **options: Any
) -> Answer:
    """The answer; after a 503, which says that nothing was done, the request is repeated."""
    async with asyncio.timeout(60):
        while True:
            answer = await ask(*given, **options)
            if answer.status != 503:
                return answer
            await asyncio.sleep(float(answer.headers["Retry-After"]))


def open_called_back(world):
    """A client of a new account with the webhook secret of `demo`, and a rate for any load."""
    secret = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    return open_tenant(
        world,
        webhookSecretRef=secret,
        funds={"paidMicros": 1_000_000_000_000},
        requestsPerMinute=1_000_000,
    )
