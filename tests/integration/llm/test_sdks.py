"""Language models as unmodified SDKs see them, over real processes."""

import asyncio
import time
from typing import Any

import openai
import pytest
from google import genai

from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import (
    describe,
    make_key,
    open_tenant,
    unique,
    wait_known,
    wait_status,
)
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


async def test_large_prompt_and_answer_arrive_whole(world, client, sdk):
    async def repeat(reply: Reply, received: Received) -> None:
        await reply.whole(make_chat_answer(received.body["messages"][0]["content"]))

    async with LlmProvider(repeat) as provider:
        model = await serve_model(world, client, provider)
        text = "ü, [" * 1_250_000
        message = {"role": "user", "content": text}
        made = await sdk.chat.completions.create(model=model, messages=[message])
        assert made.choices[0].message.content == text


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


async def test_sdk_waits_for_retry_after_of_a_limited_provider_and_tries_again(world, client):
    limited = asyncio.Event()

    async def limit_once(reply: Reply, received: Received) -> None:
        if received.body["messages"][0]["content"] == "Limit" and not limited.is_set():
            limited.set()
            await reply.whole({"error": {"message": "slow down"}}, 429, retry_after="1")
            return
        await reply.whole(make_chat_answer())

    url = world.env["GATEWAY_BASE_URL"] + "/v1"
    async with (
        LlmProvider(limit_once) as provider,
        openai.AsyncOpenAI(base_url=url, api_key=client.key, max_retries=1) as sdk,
    ):
        model = await serve_model(world, client, provider)
        before, begin = len(provider.received), time.monotonic()
        made = await sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Limit"}]
        )
        assert made.choices[0].message.content == "Hello"
        assert len(provider.received) == before + 2
        assert time.monotonic() - begin >= 1


async def test_money_and_models_that_a_key_may_not_use_raise_their_classes_at_once(world):
    """No such error is worth a retry, and the SDK makes none."""
    sent: list[str] = []

    async def note(request: Any) -> None:
        sent.append(request.url.path)

    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [note], "response": []})
    none = {"paidMicros": 0}
    async with (
        open_tenant(world, funds=none) as poor,
        open_tenant(world, limit={"micros": 1, "window": "1d"}) as limited,
        http,
    ):
        key = make_key(world, limited.account, allowedModels=["sim-google"])
        manager = make_key(world, limited.account, "Management")
        await wait_known(limited, key.plaintext)
        await wait_status(limited, 200, "/api/v1/management/keys", key=manager.plaintext)
        for plaintext, kind, status, code in (
            (poor.key, openai.APIStatusError, 402, "insufficient_balance"),
            (limited.key, openai.RateLimitError, 429, "credit_limit_exceeded"),
            (key.plaintext, openai.PermissionDeniedError, 403, "model_not_allowed"),
            (manager.plaintext, openai.PermissionDeniedError, 403, "wrong_credential_class"),
        ):
            sdk = openai.AsyncOpenAI(
                base_url=world.env["GATEWAY_BASE_URL"] + "/v1",
                api_key=plaintext,
                http_client=http,
            )
            sent.clear()
            with pytest.raises(kind) as raised:
                await sdk.chat.completions.create(model="sim-chat", **BODY)
            assert (raised.value.status_code, raised.value.code) == (status, code)
            assert len(sent) == 1
