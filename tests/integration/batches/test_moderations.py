"""Moderations and lists of Batches as OpenAI's unmodified SDK sees them."""

import asyncio
import json
import secrets

import aiohttp
import pytest

from tests.integration.sdk import MODERATION_MICROS as MICROS
from tests.integration.sdk import MODERATION_MODEL as MODEL
from tests.integration.sdk import open_openai, read_charged
from tests.servers.tenants import describe, unique
from tests.servers.world import wait_for


@pytest.fixture
async def sdk(client):
    async with open_openai(client) as made:
        yield made


async def test_texts_and_images_are_judged(sdk):
    judged = await sdk.moderations.create(model=MODEL, input="a quiet lighthouse")
    assert judged.id.startswith("modr-")
    assert judged.model == MODEL
    (result,) = judged.results
    assert result.flagged is False
    assert result.category_applied_input_types.violence == ["text"]
    several = await sdk.moderations.create(model=MODEL, input=["a cat", "an attack"])
    assert len(several.results) == 2
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    parts = await sdk.moderations.create(
        model=MODEL, input=[{"type": "text", "text": "a cat"}, image]
    )
    assert len(parts.results) == 1


async def test_each_answer_is_charged_once_and_lands_in_the_usage(client, sdk):
    texts = [f"text {n}" for n in range(20)]
    await asyncio.gather(*(sdk.moderations.create(model=MODEL, input=text) for text in texts))

    async def is_charged():
        return await read_charged(client) == 20 * MICROS

    await wait_for(is_charged, seconds=30, what="the charge")


async def test_batch_is_created_listed_shown_and_cancelled(client, sdk, simulate):
    text = f"long {secrets.token_hex(4)}"
    match = {"on": "moderate", "prompt_contains": text}
    await simulate({"behaviour": "hang", "seconds": 60, "match": match})
    body = {"model": MODEL, "input": text}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/moderations", "body": body}
    file = ("a.jsonl", json.dumps(line).encode())
    file_id = (await sdk.files.create(file=file, purpose="batch")).id
    given = {"input_file_id": file_id, "completion_window": "24h"}
    made = [
        await sdk.batches.create(endpoint="/v1/moderations", metadata={"n": str(n)}, **given)
        for n in range(3)
    ]
    assert made[0].object == "batch"
    assert made[0].expires_at == made[0].created_at + 86_400
    assert [batch.id async for batch in sdk.batches.list(limit=2)] == [
        batch.id for batch in reversed(made)
    ]
    found = await sdk.batches.retrieve(made[1].id)
    assert (found.id, found.metadata) == (made[1].id, {"n": "1"})
    cancelled = await sdk.batches.cancel(made[2].id)
    assert cancelled.status in ("cancelling", "cancelled")


@pytest.mark.full
async def test_provider_without_its_secret_is_shown_in_the_metrics(world, shared):
    """The API says so before anybody calls it."""
    name = unique("judge")
    spec = {
        "type": "openai",
        "credentialsSecretRef": {"name": name, "key": "token"},
        "openai": {"baseUrl": "http://127.0.0.1:9/v1"},
    }
    world.apply(describe("Provider", name, spec))

    async def read_usable(provider):
        url = f"http://127.0.0.1:{world.config.ports.api_health}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
        start = f'gateway_provider_usable{{provider="{provider}"}} '
        return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]

    async def is_told():
        return await read_usable(name) == ["0.0"]

    await wait_for(is_told, what="the provider in the metrics")
    assert await read_usable("simulated-moderation") == ["1.0"]
    world.run.kubectl("delete", "gatewayprovider", name)

    async def is_forgotten():
        return await read_usable(name) == []

    await wait_for(is_forgotten, what="its end in the metrics")
