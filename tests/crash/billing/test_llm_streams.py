"""kill -9 of the API under LLM streams: what is charged, held and open afterwards (I7)."""

import asyncio
import json
import time
from urllib.parse import urlsplit

import pytest

from gateway_core.redis.link import CountersStale
from tests.crash.journal import go_back, list_usage, wait_folded
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import describe, make_key, open_tenant, read_balance, unique, wait_status
from tests.servers.world import wait_for
from tests.shares import IS_WHOLE

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("one_day"),
]

BODY = {"messages": [{"role": "user", "content": "Hi"}]}
PRICE = {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 2_000_000}
STREAMS = 20
WORDS = 20
CALL_MICROS = 10 + 2 * WORDS
FUNDS_MICROS = 100_000_000
HOLD_SECONDS = 120
"""How old a hold of a dead process is when the operator's sweep ends it."""
SWEEP_SECONDS = 60


async def drip(reply: Reply, received: Received) -> None:
    """A stream of about a second; whole answers at once."""
    if not received.body.get("stream"):
        await reply.whole(make_chat_answer())
        return
    await reply.begin()
    for frame in make_chat_chunks(*["word"] * WORDS):
        await reply.chunk(frame)
        await asyncio.sleep(0.05)
    await reply.end()


async def serve_model(world, client, provider: LlmProvider) -> str:
    """Applies a model of the provider; its id, once it can be called."""
    name = unique("llm")
    spec = {"type": "openai", "openai": {"baseUrl": f"{provider.url}/v1"}}
    route = {"name": "main", "providerName": name, "upstreamModel": "up-1"}
    model = {"modelId": name, "service": name, "action": "chat", "routes": [route]}
    world.apply(
        describe("Provider", name, spec), describe("Model", name, {**model, "prices": [PRICE]})
    )
    body = {**BODY, "model": name}
    await wait_status(client, 200, "/v1/chat/completions", method="POST", body=body, seconds=20)
    return name


def encode_request(key: str, model: str) -> bytes:
    """A streaming call as a client sends it."""
    content = json.dumps({**BODY, "model": model, "stream": True})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return (head + content).encode()


async def stream_always(world, key: str, model: str, ended: list[float]) -> bytes:
    """Stream after stream, until the API is gone; the rest of the last one."""
    request = encode_request(key, model)
    address = urlsplit(world.env["GATEWAY_BASE_URL"])
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
        manager = make_key(world, client.account, "Management").plaintext
        ended: list[float] = []
        streams = [
            asyncio.create_task(stream_always(world, client.key, model, ended))
            for _ in range(STREAMS)
        ]
        await wait_for(lambda: len(ended) >= 3 * STREAMS, what="streams", seconds=90)
        killed = time.time()
        await asyncio.to_thread(world.run.kill, "api")
        rests = await asyncio.gather(*streams)
        assert not any(b"data: [DONE]" in rest for rest in rests)
        await wait_for(lambda: provider.open_connections == 0, what="closed connections", seconds=2)

        await asyncio.to_thread(world.run.restart, "api", {})
        await wait_folded(world)
        found = await asyncio.to_thread(list_usage, world, client.account)
        calls, micros = (sum(s[name] for s in found) for name in ("requests", "chargedMicros"))
        # beside the streams there is the one whole answer that has shown that the model is served
        streamed = calls - 1
        assert micros == streamed * CALL_MICROS + 20
        safe = [moment for moment in ended if moment < go_back(killed, ended)]
        assert len(safe) <= streamed <= len(provider.received) - 1

        held = (await counters.read_spending(client.account, "2026-01-01")).held
        assert held > 0, "the holds of the streams are of a process that renews them no more"
        if IS_WHOLE:
            seconds = HOLD_SECONDS + 2 * SWEEP_SECONDS
        else:
            # as the sweep does with such holds
            await counters.mark_stale(client.account)
            seconds = 20

        async def agree() -> bool:
            # a balance that is stale is rebuilt for the one who asks
            cents = (await read_balance(client))["balance_cents"]
            try:
                spending = await counters.read_spending(client.account, "2026-01-01")
            except CountersStale:
                return False
            figures = (spending.charged, spending.held, cents)
            return figures == (micros, 0, (FUNDS_MICROS - micros) // 10_000)

        await wait_for(agree, what="counters that agree with the record", seconds=seconds)
        path = "/api/v1/management/usage?group_by=model"
        [row] = (await client.request("GET", path, key=manager)).body["data"]
        assert (row["requests"], row["cost_micros"]) == (calls, micros)
        again = await client.request("POST", "/v1/chat/completions", body={**BODY, "model": model})
        assert again.status == 200
