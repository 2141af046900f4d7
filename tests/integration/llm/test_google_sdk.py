"""What Google's unmodified SDK for Python does with language models (contract §8, annex C)."""

import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

pytestmark = pytest.mark.full

MODELS = ["sim-google", "sim-chat"]
"""At a provider of each dialect: answers of the second one are translated."""
both = pytest.mark.parametrize("model", MODELS)
ANSWER = "You said: Hello there, gateway"


class Weather(BaseModel):
    """A structured answer; the simulated model fills in samples."""

    city: str
    degrees: int


@both
def test_answers_and_streams_have_text_usage_and_public_model(sync_genai, model):
    made = sync_genai.models.generate_content(model=model, contents="Hello there, gateway")
    assert (made.text, made.model_version) == (ANSWER, model)
    assert made.candidates[0].finish_reason is types.FinishReason.STOP
    usage = made.usage_metadata
    assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count

    chunks = list(
        sync_genai.models.generate_content_stream(model=model, contents="Hello there, gateway")
    )
    assert "".join(chunk.text or "" for chunk in chunks) == ANSWER
    assert {chunk.model_version for chunk in chunks} == {model}
    assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP
    assert chunks[-1].usage_metadata == usage


@both
def test_chat_keeps_its_history(sync_genai, model):
    chat = sync_genai.chats.create(
        model=model, config=types.GenerateContentConfig(system_instruction="Be brief.")
    )
    assert chat.send_message("Hello there, gateway").text == ANSWER
    text = "".join(chunk.text or "" for chunk in chat.send_message_stream("And again"))
    assert text == "You said: Hello there, gateway And again"
    # the SDK keeps each chunk as a content of its own
    roles = [content.role for content in chat.get_history()]
    assert roles[:4] == ["user", "model", "user", "model"]
    assert set(roles[3:]) == {"model"}


@both
def test_python_function_is_called_by_the_sdk_itself(sync_genai, model):
    called = []

    def get_weather(city: str) -> dict[str, str]:
        """Looks up the weather."""
        called.append(city)
        return {"weather": "sunny"}

    made = sync_genai.models.generate_content(
        model=model,
        contents="Call get_weather for me",
        config=types.GenerateContentConfig(tools=[get_weather]),
    )
    assert called == ["sample"]
    assert "sunny" in made.text


@both
def test_structured_output_is_parsed(sync_genai, model):
    made = sync_genai.models.generate_content(
        model=model,
        contents="Hello",
        config=types.GenerateContentConfig(
            response_mime_type="application/json", response_schema=Weather
        ),
    )
    assert made.parsed == Weather(city="sample", degrees=7)


@pytest.mark.usefixtures("spare_models")
def test_models_are_listed_in_pages_and_shown(sync_genai):
    names = [model.name for model in sync_genai.models.list(config={"page_size": 7})]
    assert names == sorted(names)
    assert len(names) > 40
    assert {f"models/{model}" for model in MODELS} <= set(names)
    shown = sync_genai.models.get(model="sim-google")
    assert "generateContent" in shown.supported_actions
    assert shown.output_token_limit == 4096


@both
@pytest.mark.parametrize("fault", ["error", "junk", "drop"])
def test_fault_in_mid_stream_raises_an_api_error(
    sync_genai, spare_openai, spare_google, model, fault
):
    model = spare_openai if model == "sim-chat" else spare_google
    prompt = f"[[words=20]] [[pieces=7]] [[{fault}=6]]"
    chunks = []
    stream = sync_genai.models.generate_content_stream(model=model, contents=prompt)
    with pytest.raises(errors.APIError) as raised:
        chunks.extend(stream)
    assert (raised.value.code, raised.value.status) == (502, "UNAVAILABLE")
    assert "".join(chunk.text or "" for chunk in chunks).startswith("The quick")


@pytest.mark.parametrize(
    ("status", "kind", "code", "word"),
    [
        (400, errors.ClientError, 400, "INVALID_ARGUMENT"),
        (401, errors.ServerError, 502, "UNAVAILABLE"),
        (429, errors.ClientError, 429, "RESOURCE_EXHAUSTED"),
        (503, errors.ServerError, 503, "UNAVAILABLE"),
    ],
)
def test_status_of_a_provider_raises_the_class_of_the_translated_one(
    sync_genai, spare_google, status, kind, code, word
):
    asked = {"model": spare_google, "contents": f"[[status={status}]]"}
    with pytest.raises(kind) as raised:
        sync_genai.models.generate_content(**asked)
    assert (raised.value.code, raised.value.status) == (code, word)
    with pytest.raises(kind) as raised:
        list(sync_genai.models.generate_content_stream(**asked))
    assert (raised.value.code, raised.value.status) == (code, word)


@pytest.mark.parametrize("version", ["v1", "v1beta"])
@both
async def test_asynchronous_client_of_each_version(base_url, shared_account, version, model):
    options = types.HttpOptions(base_url=base_url, api_version=version)
    async with genai.Client(api_key=shared_account[1], http_options=options).aio as client:
        made = await client.models.generate_content(model=model, contents="Hello there, gateway")
        assert made.text == ANSWER
        chat = client.chats.create(model=model)
        chunks = [chunk async for chunk in await chat.send_message_stream("Hello there, gateway")]
        assert "".join(chunk.text or "" for chunk in chunks) == ANSWER
        names = [listed.name async for listed in await client.models.list()]
        assert f"models/{model}" in names
        with pytest.raises(errors.ClientError):
            await client.models.get(model="nothing")
