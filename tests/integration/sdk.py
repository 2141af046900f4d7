"""OpenAI's unmodified SDK with the key of an account, and the moderations that batches run."""

import asyncio
import json
from typing import Any

import openai

from tests.servers.world import Client

MODERATION_MODEL = "sim-moderation"
MODERATION_MICROS = 100
"""Price of a moderation in `examples/local`."""


def open_openai(client: Client, base: str | None = None, **options: Any) -> openai.AsyncOpenAI:
    """Return the SDK, which validates answers and retries nothing."""
    base = base or client.world.env["GATEWAY_BASE_URL"]
    options = {"max_retries": 0, **options}
    return openai.AsyncOpenAI(
        api_key=client.key, base_url=f"{base}/v1", _strict_response_validation=True, **options
    )


async def read_charged(client: Client) -> int:
    """Return the micro-dollars that the usage in the record has for the client's account."""
    usages = await asyncio.to_thread(client.world.run.kubectl, "get", "gatewayusages", "-o", "json")
    return sum(
        item.get("status", {}).get("chargedMicros", 0)
        for item in json.loads(usages)["items"]
        if item["spec"]["accountName"] == client.account
    )
