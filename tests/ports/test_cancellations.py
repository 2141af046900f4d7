"""Cancellations of MCP calls between replicas, over Redis."""

import asyncio

from gateway_mcpserver.cancellations import Cancellations
from tests.servers.server import RedisServer


async def test_cancellation_reaches_the_replica_that_waits(redis_server: RedisServer) -> None:
    receiving, waiting = (Cancellations(redis_server.url) for _ in range(2))
    heard = asyncio.Queue[tuple[str, str | int]]()
    waiting.subscribe(lambda caller, request_id: heard.put_nowait((caller, request_id)))
    following = asyncio.create_task(waiting.follow())
    while heard.empty():
        # what is published before its subscription is lost
        await receiving.publish("key-a", 7)
        await asyncio.sleep(0.02)
    assert heard.get_nowait() == ("key-a", 7)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    for replica in (receiving, waiting):
        await replica.close()
