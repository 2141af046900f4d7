"""I11: what an LLM call leaves behind while its client stays connected."""

import gc
from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import LlmCall
from tests.servers.llm_provider import Received, Reply
from tests.unit.apiserver.gateway import Answer, FakeExchange
from tests.unit.apiserver.test_llm_calls import BODY, serve


async def refuse(reply: Reply, _: Received) -> None:
    await reply.whole({"error": {"message": "no"}}, 400)


async def fail(reply: Reply, _: Received) -> None:
    await reply.whole({"error": {"message": "no"}}, 500)


async def cut(reply: Reply, _: Received) -> None:
    reply.cut()


def count_bodies(mark: str) -> int:
    calls = [found for found in gc.get_objects() if isinstance(found, LlmCall)]
    return sum(call.body.get("user") == mark for call in calls)


@pytest.mark.parametrize("model", ["chat-1", "unknown"])
@pytest.mark.parametrize("script", [refuse, fail, cut])
async def test_failed_call_keeps_no_body(script: Any, model: str) -> None:
    """Neither by its connection nor until garbage is collected, which happens seldom."""
    body = {**BODY, "model": model, "user": f"{script.__name__}-{model}"}
    parts = [{"type": "http.request", "body": orjson.dumps(body)}]
    found = Answer()

    async def receive() -> dict[str, Any]:
        return parts.pop()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async with serve(script) as (gateway, _):
        gc.disable()
        try:
            await gateway.ask_raw(receive, send, FakeExchange(found))
            assert count_bodies(body["user"]) == 0
        finally:
            gc.enable()
    assert found.status >= 400
