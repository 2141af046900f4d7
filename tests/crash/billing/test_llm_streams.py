"""kill -9 of the API under LLM streams: what is charged, held and open afterwards (I7)."""

import asyncio
import time
from urllib.parse import urlsplit

import pytest

from gateway_core.redis.link import CountersStale
from tests.crash.journal import go_back, list_usage, wait_folded
from tests.integration.llm.models import BODY, encode_request, serve_model
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import open_tenant, read_balance
from tests.servers.world import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("one_day")]

STREAMS = 20
WORDS = 20
CALL_MICROS = 10 + 2 * WORDS
WHOLE_MICROS = 20
"""Price of the answer that shows that the model is served."""
FUNDS_MICROS = 100_000_000


async def drip(reply: Reply, received: Received) -> None:
    """Answer by a stream of about a second, or at once where none is wanted."""
    if not received.body.get("stream"):
        await reply.whole(make_chat_answer())
        return
    await reply.begin()
    for frame in make_chat_chunks(*["word"] * WORDS):
        await reply.chunk(frame)
        await asyncio.sleep(0.05)
    await reply.end()


async def stream_always(url: str, request: bytes, ended: list[float]) -> bytes:
    """Make one call after the other until the API is gone; what came of the last one."""
    address = urlsplit(url)
    while True:
        received = b""
        try:
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request)
            while not received.endswith(b"0\r\n\r\n"):
                data = await reader.read(4096)
                if not data:
                    return received
                received += data
        except OSError:
            return received
        assert b"data: [DONE]" in received, received
        ended.append(time.time())
        writer.close()


async def test_api_killed_under_streams_charges_all_but_a_second_and_leaves_nothing_open(
    world, counters
):
    async with (
        open_tenant(world, requestsPerMinute=1_000_000) as client,
        LlmProvider(drip) as provider,
    ):
        model = await serve_model(world, client, provider)
        request = encode_request(client.key, {**BODY, "model": model, "stream": True})
        url, ended = world.env["GATEWAY_BASE_URL"], list[float]()
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(stream_always(url, request, ended)) for _ in range(STREAMS)
            ]
            await wait_for(lambda: len(ended) >= 3 * STREAMS, what="streams", seconds=90)
            killed = time.time()
            await asyncio.to_thread(world.run.kill, "api")
        assert not any(b"data: [DONE]" in stream.result() for stream in streams)
        await wait_for(lambda: provider.open_connections == 0, what="closed connections", seconds=2)

        await asyncio.to_thread(world.run.restart, "api", {})
        await wait_folded(world)
        found = await asyncio.to_thread(list_usage, world, client.account)
        calls, micros = (sum(s[name] for s in found) for name in ("requests", "chargedMicros"))
        streamed = calls - 1
        assert micros == streamed * CALL_MICROS + WHOLE_MICROS
        safe = [moment for moment in ended if moment < go_back(killed, ended)]
        assert len(safe) <= streamed <= len(provider.received) - 1

        held = (await counters.read_spending(client.account, "2026-01-01")).held
        assert held > 0, "the holds of the streams are of a process that renews them no more"
        # the sweep, which ends such holds after two minutes, marks the account so
        await counters.mark_stale(client.account)

        async def agree() -> bool:
            # a stale balance is rebuilt for the client that asks
            cents = (await read_balance(client))["balance_cents"]
            try:
                spending = await counters.read_spending(client.account, "2026-01-01")
            except CountersStale:
                return False
            figures = (spending.charged, spending.held, cents)
            return figures == (micros, 0, (FUNDS_MICROS - micros) // 10_000)

        await wait_for(agree, what="counters that agree with the record", seconds=20)
