"""SDKs of both dialects, unmodified, on an account without limits."""

import asyncio

import openai
import pytest
from google import genai
from google.genai import types

from tests.integration.llm.models import PRICE
from tests.servers.tenants import describe, unique
from tests.servers.world import wait_for

SPARES = 30
NAMED = "acme/chat:free"
"""Id of a model with both characters that paths of models have a rule for."""


@pytest.fixture(scope="session")
def base_url(world):
    """Where the gateway is."""
    return world.env["GATEWAY_BASE_URL"]


@pytest.fixture(scope="session")
def sync_openai(base_url, shared_account):
    """OpenAI's SDK, which validates answers and retries nothing."""
    with openai.OpenAI(
        base_url=f"{base_url}/v1",
        api_key=shared_account[1],
        max_retries=0,
        timeout=30,
        _strict_response_validation=True,
    ) as made:
        yield made


@pytest.fixture(scope="session")
def sync_genai(base_url, shared_account):
    """Google's SDK."""
    options = types.HttpOptions(base_url=base_url, timeout=30_000)
    with genai.Client(api_key=shared_account[1], http_options=options) as made:
        yield made


@pytest.fixture(scope="session")
def spare_models(world, shared_account):
    """Models by dialect, each at a simulated provider of its own, whose circuit a test may open."""
    simulator = world.env["GATEWAY_SIMULATOR_URL"]
    secret = {"name": "simulated-moderation-key", "key": "token"}
    spares = {"openai": "v1", "google": "v1beta"}
    models, objects = {dialect: [] for dialect in spares}, []
    for dialect, version in spares.items():
        for _ in range(SPARES):
            model = unique("spare")
            models[dialect].append(model)
            declared = {"baseUrl": f"{simulator}/{version}"}
            if dialect == "openai":
                declared["hasResponses"] = True
            spec = {"type": dialect, dialect: declared, "credentialsSecretRef": secret}
            routes = [{"name": "main", "providerName": model, "upstreamModel": "any"}]
            route = {"service": model, "action": "chat", "routes": routes, "prices": [PRICE]}
            objects.append(describe("Provider", model, spec))
            objects.append(describe("Model", model, {"modelId": model, **route}))
    named = world.read("gatewaymodel", "sim-chat")["spec"] | {"modelId": NAMED}
    world.apply(*objects, describe("Model", "named", named))

    async def wait_served():
        async with world.client(shared_account[1]) as client:

            async def are_served():
                listed = (await client.request("GET", "/v1/models")).body["data"]
                wanted = {model for each in models.values() for model in each}
                return wanted | {NAMED} <= {entry["id"] for entry in listed}

            await wait_for(are_served, what="the spare models")

    asyncio.run(wait_served())
    return models


@pytest.fixture
def spare_openai(spare_models):
    """A model of its own at a simulated provider of OpenAI's dialect."""
    return spare_models["openai"].pop()


@pytest.fixture
def spare_google(spare_models):
    """A model of its own at a simulated provider of Google's dialect."""
    return spare_models["google"].pop()
