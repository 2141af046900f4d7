"""Refusals say what to do: where the key goes, which class it must have, what the balance lacks."""

from typing import Any

import orjson
import pytest

from tests.unit.apiserver.gateway import PATH, Answer, Gateway, call
from tests.unit.apiserver.llm_gateway import BODY, CHAT, answer, serve

GENERATE = "/v1beta/models/chat-1:generateContent"
GOOGLE_ONLY = (
    "Authorization: Bearer <key> instead of x-goog-api-key, which is for models, generateContent"
    " and streamGenerateContent."
)
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
CREATES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, BODY),
    ("/v1/responses", {"model": "chat-1", "input": "Hi"}),
    (GENERATE, CONTENTS),
    ("/v1/models/chat-1:generateContent", CONTENTS),
]


def read_message(found: Answer) -> str:
    error = found.json["error"]
    return str(error["message"] if isinstance(error, dict) else error)


async def post(gateway: Gateway, path: str, body: Any, **headers: str) -> Answer:
    sent = [(name.replace("_", "-"), value) for name, value in headers.items()]
    sent.append(("Content-Type", "application/json"))
    return await call(gateway.app, "POST", path, headers=sent, content=orjson.dumps(body))


@pytest.mark.parametrize(
    ("method", "path", "header", "text"),
    [
        ("POST", GENERATE, "", "An API key is required: x-goog-api-key: <key>."),
        ("GET", "/v1beta/models", "", "An API key is required: x-goog-api-key: <key>."),
        ("POST", "/v1/models/chat-1:generateContent", "", "x-goog-api-key: <key>."),
        ("POST", CHAT, "", "An API key is required: Authorization: Bearer <key>."),
        ("POST", CHAT, "x-api-key", "Authorization: Bearer <key> instead of x-api-key."),
        ("POST", CHAT, "api-key", "Authorization: Bearer <key> instead of api-key."),
        ("GET", "/v1/files", "x-goog-api-key", GOOGLE_ONLY),
        ("GET", "/api/v1/me", "x-goog-api-key", GOOGLE_ONLY),
    ],
)
async def test_missing_key_names_the_header_of_the_path(
    gateway: Gateway, method: str, path: str, header: str, text: str
) -> None:
    headers = [(header, gateway.key)] if header else []
    headers.append(("Content-Type", "application/json"))
    found = await call(gateway.app, method, path, headers=headers, content=b"{}")
    assert found.status == 401
    assert read_message(found).endswith(text)


@pytest.mark.parametrize(("path", "body"), CREATES)
async def test_balance_that_is_too_small_says_what_is_left_and_needed(
    path: str, body: dict[str, Any]
) -> None:
    async with serve(answer) as (gateway, provider):
        gateway.put_account("demo", funds={"paidMicros": 30})
        limit = {"max_tokens": 100} if path == CHAT else {}
        found = await post(gateway, path, {**body, **limit}, authorization=f"Bearer {gateway.key}")
        assert found.status == 402
        message = read_message(found)
        assert message.startswith("The balance does not cover this call: it needs up to ")
        assert message.endswith(" USD, 0.00003 USD are left.")
        assert provider.received == []


async def test_balance_of_a_task_says_what_is_left_beside_reservations(gateway: Gateway) -> None:
    gateway.put_account("demo", funds={"paidMicros": 800_000})
    assert (await gateway.create()).status == 202
    found = await gateway.create()
    assert (found.status, found.json["error"]) == (
        402,
        "The balance does not cover this call: it needs up to 0.50 USD, 0.30 USD are left.",
    )


@pytest.mark.parametrize("path", [PATH, CHAT, "/v1/responses", GENERATE, "/v1/batches"])
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "The body is empty, and must be a JSON object."),
        (b'{"model": "chat-1",\n "x" 1}', "The body is not valid JSON (line 2, column 6)."),
        (b"{'model': 'chat-1'}", "The body is not valid JSON (line 1, column 2)."),
    ],
)
async def test_body_that_is_no_json_says_where(
    gateway: Gateway, path: str, raw: bytes, text: str
) -> None:
    found = await gateway.create(raw, path=path)
    assert (found.status, read_message(found)) == (400, text)


@pytest.mark.parametrize("path", [PATH, CHAT, GENERATE, "/v1/files", "/v1/batches"])
async def test_management_key_is_told_to_use_a_standard_key(gateway: Gateway, path: str) -> None:
    key = gateway.put_key("demo", "Management")
    found = await post(gateway, path, {}, authorization=f"Bearer {key}")
    text = "This operation needs a standard key (sk-…); the call has a management key (mk-…)."
    assert (found.status, read_message(found)) == (403, text)


async def test_standard_key_is_told_to_use_a_management_key(gateway: Gateway) -> None:
    found = await gateway.get("/api/v1/management/keys")
    text = "This operation needs a management key (mk-…); the call has a standard key (sk-…)."
    assert (found.status, read_message(found)) == (403, text)
