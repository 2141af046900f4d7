"""An unknown model is answered with near names that the key may call, and where the list is."""

from typing import Any

import pytest

from tests.unit.apiserver.gateway import MODEL, PATH, Answer, Gateway, body, call

CHAT = {"messages": [{"role": "user", "content": "a"}]}
NATIVE = {"contents": [{"role": "user", "parts": [{"text": "a"}]}]}
PRICES = {"service": "sim", "action": "reference_to_video"}


@pytest.fixture
def gateway() -> Gateway:
    gateway = Gateway()
    for model_id, service, action in (
        ("chat-large", "llm", "chat"),
        ("chat-small", "llm", "chat"),
        ("judge-1", "safety", "moderations"),
    ):
        price: dict[str, Any] = {"perCallMicros": 5}
        if action == "chat":
            price = {"tokens": {"inputMicrosPerMillion": 1, "outputMicrosPerMillion": 1}}
        gateway.put_model(
            model_id,
            service,
            action=action,
            prices=[price],
            **({"maxOutputTokens": 10} if action == "chat" else {}),
        )
    return gateway


def read_text(answer: Answer) -> str:
    """The text of an error, in each form."""
    error = answer.json["error"]
    if "errors" in answer.json:
        [text] = answer.json["errors"]["model"]
        return str(text)
    return str(error["message"] if isinstance(error, dict) else error)


async def ask(gateway: Gateway, path: str, model: str, key: str | None = None) -> Answer:
    if path == PATH:
        return await gateway.create(body(model=model), key=key)
    if path == "/v1/chat/completions":
        return await gateway.create({**CHAT, "model": model}, path=path, key=key)
    if path in ("/v1/responses", "/v1/moderations"):
        return await gateway.create({"model": model, "input": "a"}, path=path, key=key)
    if path == "/api/v1/price_quotes":
        return await gateway.create({**PRICES, "model": model}, path=path, key=key)
    if path.endswith("models/"):
        return await gateway.get(path + model, key=key)
    return await gateway.create(NATIVE, path=path.replace("MODEL", model), key=key)


LLM = "GET /v1/models lists the models."
PATHS = [
    (PATH, "sim-q4-reference-to-vidoe", MODEL, "GET /api/v1/price_schedules?service=sim lists"),
    ("/api/v1/price_quotes", "sim-q4-reference", MODEL, "GET /api/v1/price_schedules lists"),
    ("/v1/chat/completions", "chat-larg", "chat-large or chat-small", LLM),
    ("/v1/responses", "Chat-Large-2", "chat-large", LLM),
    ("/v1/moderations", "judge", "judge-1", LLM),
    ("/v1beta/models/MODEL:generateContent", "chat_large", "chat-large", LLM),
    ("/v1/models/MODEL:streamGenerateContent", "models/chat-larg", "chat-large", LLM),
    ("/v1/models/", "openai/chat-large", "chat-large", LLM),
    ("/v1beta/models/", "chat-lrge", "chat-large", LLM),
]


@pytest.mark.parametrize(("path", "model", "near", "listing"), PATHS)
async def test_near_names_and_list_are_named(
    gateway: Gateway, path: str, model: str, near: str, listing: str
) -> None:
    answer = await ask(gateway, path, model)
    assert answer.status in (400, 404), answer.body
    text = read_text(answer)
    assert f"Did you mean {near}" in text
    assert listing in text


@pytest.mark.parametrize(("path", "model", "near", "listing"), PATHS)
async def test_model_that_the_key_may_not_use_is_not_named(
    gateway: Gateway, path: str, model: str, near: str, listing: str
) -> None:
    if path == "/api/v1/price_quotes":
        # prices of all models are public
        return
    key = gateway.put_key("demo", allowedModels=["chat-small"])
    answer = await ask(gateway, path, model, key=key)
    text = read_text(answer)
    assert near.partition(" ")[0] not in text.replace(model, "")
    assert listing in text


@pytest.mark.parametrize(
    ("path", "model", "other"),
    [
        ("/v1/chat/completions", MODEL, PATH),
        ("/v1/moderations", "chat-small", "/v1/chat/completions"),
        ("/v1beta/models/MODEL:generateContent", "judge-1", "/v1/moderations"),
        (PATH, "chat-small", "/v1/chat/completions"),
    ],
)
async def test_model_of_another_path_names_that_path(
    gateway: Gateway, path: str, model: str, other: str
) -> None:
    text = read_text(await ask(gateway, path, model))
    assert f" It is a model of POST {other}." in text
    assert "There is no" not in text
    key = gateway.put_key("demo", deniedModels=[model])
    assert other not in read_text(await ask(gateway, path, model, key=key))


@pytest.mark.parametrize(
    ("service", "action", "near"),
    [("sim", "image_to_video", "sim/reference_to_video"), ("lm", "chat", "llm/chat")],
)
async def test_quote_of_an_unknown_path_names_the_nearest(
    gateway: Gateway, service: str, action: str, near: str
) -> None:
    question = {"service": service, "action": action}
    answer = await gateway.create(question, path="/api/v1/price_quotes")
    assert answer.status == 404
    assert f"Did you mean {near}?" in read_text(answer)


async def test_error_of_a_huge_name_is_short(gateway: Gateway) -> None:
    for path in (PATH, "/v1/chat/completions", "/v1/moderations"):
        answer = await ask(gateway, path, "x" * 100_000)
        assert answer.status in (400, 404)
        assert len(answer.body) < 1000


async def test_list_that_errors_name_is_served(gateway: Gateway) -> None:
    for path, query in (("/v1/models", ""), ("/api/v1/price_schedules", "service=sim")):
        headers = [("Authorization", f"Bearer {gateway.key}")]
        answer = await call(gateway.app, "GET", path, headers=headers, query=query)
        assert answer.status == 200


@pytest.mark.parametrize("action", ["generateConten", "countTokens", "x" * 9000])
async def test_wrong_method_of_google_names_those_of_models(gateway: Gateway, action: str) -> None:
    answer = await gateway.create(NATIVE, path=f"/v1beta/models/chat-large:{action}")
    assert (answer.status, answer.json["error"]["status"]) == (404, "NOT_FOUND")
    text = answer.json["error"]["message"]
    assert text.endswith("is not available; models have generateContent and streamGenerateContent.")
    assert len(text) < 400
