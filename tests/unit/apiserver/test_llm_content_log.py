"""Prompts and answers in the request log: only where an admin has switched that on for a key."""

from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from gateway_core.observability.logs import _render_json
from gateway_web.middleware.observers import LOGGER
from tests.servers.llm_provider import Received, Reply, make_chat_answer
from tests.unit.apiserver.llm_gateway import LlmGateway, fail_with, serve, stream
from tests.unit.apiserver.management import Office

PROMPT, ANSWER = "a secret garden", "roses and thyme"
SECRET = "sk-abcdefgh_0123456789abcdefghijABCDEFGHIJ01234567"


async def say(reply: Reply, received: Received) -> None:
    if received.body.get("stream"):
        await stream(*ANSWER.split(" "))(reply, received)
    else:
        await reply.whole(make_chat_answer(ANSWER))


def ask(text: str = PROMPT) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def log(gateway: LlmGateway, **fields: Any) -> dict[str, Any]:
    """The line of one call."""
    with capture_logs() as lines:
        await gateway.chat(**fields)
    (line,) = [line for line in lines if line["event"] == "answered"]
    return dict(line)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_cached", [False, True])
async def test_log_holds_prompt_and_answer_only_where_an_admin_has_switched_it_on(
    is_stream: bool, is_cached: bool
) -> None:
    async with serve(say) as (gateway, _):
        by_default = await log(gateway, **ask(), stream=is_stream)
        assert not {"prompt", "answer"} & by_default.keys()
        assert not any(word in str(by_default) for word in ("garden", "roses", "thyme"))
        gateway.change_key(gateway.key, logContent=True, cacheSeconds=60)
        if is_cached:
            await gateway.chat(**ask(), stream=is_stream)
            await gateway.answer_cache.close()
        line = await log(gateway, **ask(), stream=is_stream)

        assert orjson.loads(line["prompt"])["messages"] == ask()["messages"]
        assert all(word in line["answer"] for word in ANSWER.split())
        # another key of the account is not affected
        other = await log(gateway, **ask(), key=gateway.put_key("demo"))
        assert "prompt" not in other


async def test_failed_call_is_logged_with_its_prompt() -> None:
    async with serve(fail_with(500)) as (gateway, _):
        gateway.change_key(gateway.key, logContent=True)
        line = await log(gateway, **ask())

        assert (line["status"], line["answer"]) == (502, "")
        assert PROMPT in line["prompt"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_line_is_bounded_and_has_no_secrets_and_no_line_ends(is_stream: bool) -> None:
    async def echo(reply: Reply, received: Received) -> None:
        text = received.body["messages"][0]["content"]
        if received.body.get("stream"):
            await stream(text, "x" * 50_000, text)(reply, received)
        else:
            await reply.whole(make_chat_answer(text + '"' * 50_000))

    async with serve(echo) as (gateway, _):
        gateway.change_key(gateway.key, logContent=True)
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}]
        messages = [
            {"role": "user", "content": f"use {SECRET}\n\x1b[31m and Bearer abcdef.12345"},
            {"role": "user", "content": parts},
            {"role": "user", "content": '"' * 100_000},
        ]
        line = await log(gateway, messages=messages, stream=is_stream)

        rendered = _render_json("answered", LOGGER, line)
        assert len(rendered) < 34 * 1024
        assert rendered.count(b"\n") == 1
        text = line["prompt"] + line["answer"]
        assert not any(secret in text for secret in (SECRET, "abcdef.12345", "AAAA"))
        assert not any(ord(character) < 32 for character in text)


async def test_tenant_cannot_switch_it_on() -> None:
    async with serve(say) as (gateway, _):
        office = Office(gateway)
        found = await office.ask("POST", "/keys", {"name": "a", "log_content": True})
        assert found.status == 400

        made = (await office.ask("POST", "/keys", {"name": "a"})).json
        found = await office.ask("PATCH", f"/keys/{made['id']}", {"log_content": True})
        assert found.status == 400
