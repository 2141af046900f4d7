"""Moderations and Batches as an unmodified OpenAI client sees them, and what they leave behind."""

import asyncio
import json
import secrets
import time

import aiohttp
import openai
import pytest

from gateway_cli.local.state import read_shared_secret
from gateway_core.api.ids import ACCOUNT_LABEL, IdMint, shard_of
from tests.servers.tenants import describe, unique
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

MODEL = "sim-moderation"
PRICE = 100
"""Micro-dollars a call costs by `examples/local`."""


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
async def sdk(world, client, request):
    async with open_sdk(world, client, strict=request.param) as made:
        yield made


def open_sdk(world, client, *, strict=True, **options):
    return openai.AsyncOpenAI(
        base_url=world.env["GATEWAY_BASE_URL"] + "/v1",
        api_key=client.key,
        _strict_response_validation=strict,
        max_retries=0,
        **options,
    )


def make_file(world, account):
    """A File as the gateway makes them, with no bytes behind it; its id."""
    mint = IdMint(read_shared_secret(world.config.secrets_directory, "id-key"))
    file_id = mint.mint_ordered("file", account, int(time.time() * 1000))
    segment = {"key": f"files/{account}/{file_id}", "bytes": 5, "sha256": "0" * 64}
    world.apply(
        {
            "apiVersion": "modelgateway.dev/v1alpha1",
            "kind": "GatewayFile",
            "metadata": {
                "name": file_id,
                "labels": {
                    ACCOUNT_LABEL: account,
                    "modelgateway.dev/shard": str(shard_of(file_id)),
                },
            },
            "spec": {
                "request": {
                    "accountName": account,
                    "purpose": "batch",
                    "filename": "a.jsonl",
                    "bytes": 5,
                    "segments": [segment],
                }
            },
        },
        command="create",
    )
    return file_id


async def read_charged(client):
    """Micro-dollars that the usage in the record has for the client's account."""
    items = await asyncio.to_thread(client.world.run.kubectl, "get", "gatewayusages", "-o", "json")
    return sum(
        item.get("status", {}).get("chargedMicros", 0)
        for item in json.loads(items)["items"]
        if item["spec"]["accountName"] == client.account
    )


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


async def test_refusals_have_their_class_and_code(sdk):
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.moderations.create(model=MODEL, input="")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "input")
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.moderations.create(model="nobody", input="a")
    assert caught.value.code == "model_not_found"


async def test_failure_of_provider_is_reported_and_not_charged(world, client, simulate):
    case = secrets.token_hex(4)
    rules = {"limited": {"status": 429, "retry_after": 7}, "denied": {"status": 401}}
    await simulate(
        *(
            {
                "behaviour": "status",
                **rule,
                "match": {"on": "moderate", "prompt_contains": f"{name} {case}"},
            }
            for name, rule in rules.items()
        )
    )
    async with open_sdk(world, client) as sdk:
        with pytest.raises(openai.RateLimitError) as limited:
            await sdk.moderations.create(model=MODEL, input=f"limited {case}")
        assert limited.value.code == "upstream_rate_limited"
        assert limited.value.response.headers["retry-after"] == "7"
        assert "x-ratelimit-reset" not in limited.value.response.headers
        with pytest.raises(openai.InternalServerError) as denied:
            await sdk.moderations.create(model=MODEL, input=f"denied {case}")
        assert (denied.value.status_code, denied.value.code) == (502, "upstream_error")
    assert (await client.request("GET", "/api/v1/me/balance")).body["spent_cents_total"] == 0


async def test_each_answer_is_charged_once_and_lands_in_the_usage(world, client):
    async with open_sdk(world, client) as sdk:
        await asyncio.gather(
            *(sdk.moderations.create(model=MODEL, input=f"text {n}") for n in range(20))
        )
    await wait_for(lambda: read_is(client, 20 * PRICE), seconds=30, what="the charge")


async def read_is(client, micros):
    return await read_charged(client) == micros


async def test_client_that_disconnects_is_charged(world, client, simulate):
    text = f"late {secrets.token_hex(4)}"
    await simulate(
        {
            "behaviour": "hang",
            "seconds": 1,
            "match": {"on": "moderate", "prompt_contains": text},
        }
    )
    async with open_sdk(world, client, timeout=0.3) as sdk:
        with pytest.raises(openai.APITimeoutError):
            await sdk.moderations.create(model=MODEL, input=text)
    await wait_for(lambda: read_is(client, PRICE), seconds=30, what="the charge")


async def test_a_batch_is_made_listed_shown_and_cancelled(client, sdk, simulate):
    text = f"long {secrets.token_hex(4)}"
    await simulate(
        {
            "behaviour": "hang",
            "seconds": 60,
            "match": {"on": "moderate", "prompt_contains": text},
        }
    )
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
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.batches.create(
            endpoint="/v1/moderations", input_file_id="file-x", completion_window="24h"
        )
    assert (caught.value.code, caught.value.param) == ("file_not_found", "input_file_id")
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.batches.create(endpoint="/v1/embeddings", **given)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "endpoint")


async def test_an_idempotency_key_makes_one_batch_of_many_calls(world, client):
    file_id = await asyncio.to_thread(make_file, world, client.account)
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/moderations",
        "completion_window": "24h",
    }
    headers = {"Idempotency-Key": "one"}
    answers = await asyncio.gather(
        *(client.request("POST", "/v1/batches", headers=headers, body=body) for _ in range(8))
    )
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["id"] for answer in answers}) == 1


async def test_a_provider_whose_secret_is_not_there_is_shown_in_the_metrics(world, shared):
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
