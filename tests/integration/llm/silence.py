"""A scenario: streams that are silent for longer than 15 s (contract §7.2, §8.5)."""

import asyncio
from typing import Any

import openai
from google import genai

from tests.integration.llm.test_sdks import BODY, serve_model
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import open_tenant
from tests.servers.world import World

SILENT_SECONDS = 15.5
NATIVE = {"contents": [{"parts": [{"text": "Hi"}]}]}


async def pause(reply: Reply, received: Received) -> None:
    """A stream that says nothing after its first word for a time."""
    if not received.body.get("stream"):
        await reply.whole(make_chat_answer())
        return
    await reply.begin()
    role, word, *rest = make_chat_chunks("Hell", "o")
    await reply.chunk(role + word)
    await asyncio.sleep(SILENT_SECONDS)
    await reply.chunk(b"".join(rest))
    await reply.end()


async def stream_with_a_pause(world: World) -> dict[str, Any]:
    """What each dialect's raw client and SDK got of such a stream."""
    base_url = world.env["GATEWAY_BASE_URL"]
    async with open_tenant(world) as client, LlmProvider(pause) as provider:
        model = await serve_model(world, client, provider)

        async def read(path: str, body: dict[str, Any]) -> bytes:
            return (await client.request("POST", path, body=body)).raw

        async def read_by_openai() -> str:
            async with (
                openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=client.key) as sdk,
                sdk.chat.completions.stream(model=model, **BODY) as stream,
            ):
                return (await stream.get_final_completion()).choices[0].message.content or ""

        async def read_by_genai() -> str:
            sdk = genai.Client(api_key=client.key, http_options={"base_url": base_url}).aio
            chunks = await sdk.models.generate_content_stream(model=model, contents="Hi")
            return "".join([chunk.text or "" async for chunk in chunks])

        native = f"/v1beta/models/{model}:streamGenerateContent"
        streaming = {"model": model, "stream": True}
        names = ("chat", "responses", "google", "array", "openai", "genai")
        got = await asyncio.gather(
            read("/v1/chat/completions", streaming | BODY),
            read("/v1/responses", streaming | {"input": "Hi"}),
            read(f"{native}?alt=sse", NATIVE),
            read(native, NATIVE),
            read_by_openai(),
            read_by_genai(),
        )
        return dict(zip(names, got, strict=True))
