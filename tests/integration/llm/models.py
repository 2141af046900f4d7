"""Models at providers of the test's own, and calls of them."""

import json
from typing import Any

from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.tenants import describe, unique
from tests.servers.world import Client, World, wait_for

PRICE = {"inputPerMillionMicros": 1_000_000, "outputPerMillionMicros": 2_000_000}
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


async def reply_chat(reply: Reply, received: Received) -> None:
    """Answer with a chat completion of 5 tokens, or a stream of two."""
    if not received.body.get("stream"):
        await reply.whole(make_chat_answer())
        return
    await reply.begin()
    for frame in make_chat_chunks("Hell", "o"):
        await reply.chunk(frame)
    await reply.end()


async def serve_model(world: World, client: Client, provider: LlmProvider) -> str:
    """Apply a model at the provider; its id, once it can be called."""
    model = unique("llm")
    spec = {"type": "openai", "openai": {"baseUrl": f"{provider.url}/v1"}}
    route = {"name": "main", "providerName": model, "upstreamModel": "up-1"}
    served = {"modelId": model, "service": model, "action": "chat", "routes": [route]}
    world.apply(
        describe("Provider", model, spec), describe("Model", model, {**served, "prices": [PRICE]})
    )

    async def is_served() -> bool:
        body = {**BODY, "model": model}
        answer = await client.request("POST", "/v1/chat/completions", body=body)
        return answer.status == 200

    await wait_for(is_served, what="the model")
    return model


def encode_request(key: str, body: dict[str, Any]) -> bytes:
    """Return a chat call as a client sends it."""
    content = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
