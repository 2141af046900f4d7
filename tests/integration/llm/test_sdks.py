"""Language models as unmodified SDKs see them, over real processes."""

import pytest
from google import genai

from tests.integration.llm.models import BODY, reply_chat, serve_model
from tests.integration.sdk import open_openai
from tests.servers.llm_provider import LlmProvider


@pytest.fixture
async def sdk(client):
    async with open_openai(client) as made:
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
