"""Language models as unmodified SDKs see them, over real processes."""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from google import genai

from tests.crash.shares import share
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import describe, make_key, open_tenant, unique
from tests.servers.world import wait_for

FUNDS = 100_000_000
PRICE = {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 2_000_000}
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


async def reply_chat(reply: Reply, received: Received) -> None:
    """A chat completion of 5 tokens, or a stream of two."""
    if not received.body.get("stream"):
        await reply.whole(make_chat_answer())
        return
    await reply.begin()
    for frame in make_chat_chunks("Hell", "o"):
        await reply.chunk(frame)
    await reply.end()


async def serve_model(world, client, *providers: LlmProvider) -> str:
    """Applies a model with a route to each provider; its id, once it can be called."""
    model = unique("llm")
    names = [f"{model}-{number}" for number in range(len(providers))]
    for name, provider in zip(names, providers, strict=True):
        spec = {"type": "openai", "openai": {"baseUrl": f"{provider.url}/v1"}}
        world.apply(describe("Provider", name, spec))
    routes = [
        {"name": name, "providerName": name, "upstreamModel": "up-1", "priority": number}
        for number, name in enumerate(names)
    ]
    spec = {"modelId": model, "service": model, "action": "chat", "routes": routes}
    world.apply(describe("Model", model, {**spec, "prices": [PRICE]}))

    async def is_served() -> bool:
        body = {**BODY, "model": model}
        answer = await client.request("POST", "/v1/chat/completions", body=body)
        return answer.status == 200

    await wait_for(is_served, what="the model")
    return model


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
async def sdk(world, client, request):
    url = world.env["GATEWAY_BASE_URL"] + "/v1"
    strict = request.param
    async with openai.AsyncOpenAI(
        base_url=url, api_key=client.key, max_retries=0, _strict_response_validation=strict
    ) as made:
        yield made


async def test_openai_sdk_completes_streams_and_lists(world, client, sdk):
    async with LlmProvider(reply_chat) as provider:
        model = await serve_model(world, client, provider)

        made = await sdk.chat.completions.create(model=model, messages=BODY["messages"])
        assert made.choices[0].message.content == "Hello"
        assert (made.model, made.usage.total_tokens) == (model, 15)
        assert made._request_id.startswith("req_")

        async with sdk.chat.completions.stream(
            model=model, messages=BODY["messages"], stream_options={"include_usage": True}
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello"
        assert final.usage.completion_tokens == 2

        assert model in [entry.id async for entry in sdk.models.list()]
        assert (await sdk.models.retrieve(model)).id == model


async def test_sdk_raises_the_error_of_a_broken_stream(world, client, sdk):
    async def cut(reply: Reply, received: Received) -> None:
        if not received.body.get("stream"):
            await reply.whole(make_chat_answer())
            return
        await reply.begin()
        await reply.chunk(make_chat_chunks("Hell")[1])
        reply.cut()

    async with LlmProvider(cut) as provider:
        model = await serve_model(world, client, provider)
        stream = await sdk.chat.completions.create(
            model=model, messages=BODY["messages"], stream=True
        )
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
        assert raised.value.code == "upstream_error"


async def test_clients_that_leave_at_any_moment_leave_nothing_open(world):
    """Each is charged once, and neither a reservation nor an upstream connection stays."""
    chance = random.Random(13)

    async def drip(reply: Reply, received: Received) -> None:
        if not received.body.get("stream"):
            await reply.whole(make_chat_answer())
            return
        await asyncio.sleep(chance.random() / 20)
        await reply.begin()
        for frame in make_chat_chunks(*["word"] * 20):
            await reply.chunk(frame)
            await asyncio.sleep(chance.random() / 50)
        await reply.end()

    async with (
        open_tenant(world, requestsPerMinute=1_000_000) as client,
        LlmProvider(drip) as provider,
    ):
        model = await serve_model(world, client, provider)
        manager = make_key(world, client.account, "Management").plaintext
        request = encode_request(client.key, {**BODY, "model": model, "stream": True})
        address = urlsplit(world.env["GATEWAY_BASE_URL"])
        slots = asyncio.Semaphore(20)

        async def call_and_leave() -> None:
            async with slots:
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(request)
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.random() / 2):
                        while await reader.read(4096):
                            pass
                writer.transport.abort()

        await asyncio.gather(*(call_and_leave() for _ in range(share(1_000))))
        await wait_for(lambda: provider.open_connections == 0, what="closed connections")

        async def is_counted() -> dict[str, Any] | None:
            path = "/api/v1/management/usage?group_by=model"
            answer = await client.request("GET", path, key=manager)
            (row,) = (answer.body or {}).get("data") or [{}]
            return row if row.get("requests", 0) >= len(provider.received) else None

        row = await wait_for(is_counted, what="the usage of each call", seconds=60)
        # the provider sees no more calls than are counted: one may be cut while it is being sent
        assert row["requests"] <= len(provider.received) + 3
        balance = (await client.request("GET", "/api/v1/me/balance")).body
        assert balance["balance_cents"] == (FUNDS - row["cost_micros"]) // 10_000


def encode_request(key: str, body: dict[str, Any]) -> bytes:
    """A chat call as a client sends it."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@pytest.mark.parametrize("model", ["sim-google", "sim-chat"])
async def test_google_sdk_generates_streams_and_lists(world, client, model):
    """`sim-chat` is at a provider of the OpenAI dialect: its answers are translated."""
    url = world.env["GATEWAY_BASE_URL"]
    sdk = genai.Client(api_key=client.key, http_options={"base_url": url}).aio

    made = await sdk.models.generate_content(model=model, contents="Hello")
    assert made.text
    assert made.model_version == model
    assert made.usage_metadata.total_token_count > 0

    chunks = [
        chunk
        async for chunk in await sdk.models.generate_content_stream(model=model, contents="Hello")
    ]
    assert "".join(chunk.text or "" for chunk in chunks) == made.text
    assert chunks[-1].usage_metadata.total_token_count > 0

    names = [listed.name async for listed in await sdk.models.list()]
    assert f"models/{model}" in names
    with pytest.raises(genai.errors.ClientError) as refused:
        await sdk.models.count_tokens(model=model, contents="Hello")
    assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize("model", ["sim-google", "sim-chat"])
async def test_openai_sdk_gets_responses_of_either_dialect(sdk, model):
    made = await sdk.responses.create(model=model, input="Hello")
    assert made.output_text
    async with sdk.responses.stream(model=model, input="Hello") as stream:
        final = await stream.get_final_response()
    assert final.output_text == made.output_text
    assert final.usage.total_tokens > 0
