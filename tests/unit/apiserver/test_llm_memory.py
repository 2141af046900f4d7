"""I11: what an LLM call leaves behind while its client stays connected."""

import gc

import pytest

from gateway_core.llm.formats.calls import LlmCall
from tests.servers.llm_provider import Received, Reply
from tests.unit.apiserver.gateway import Answer, FakeExchange
from tests.unit.apiserver.llm_gateway import Script, fail_with, serve


async def cut(reply: Reply, _: Received) -> None:
    reply.cut()


def count_bodies(mark: str) -> int:
    calls = [found for found in gc.get_objects() if isinstance(found, LlmCall)]
    return sum(call.body.get("user") == mark for call in calls)


@pytest.mark.parametrize("model", ["chat-1", "unknown"])
@pytest.mark.parametrize("script", [fail_with(400), fail_with(500), cut], ids=["400", "500", "cut"])
async def test_failed_call_keeps_no_body(script: Script, model: str) -> None:
    """Neither by its connection nor until garbage is collected, which happens seldom."""
    mark, found = f"{id(script)}-{model}", Answer()
    async with serve(script) as (gateway, _):
        gc.disable()
        try:
            await gateway.ask_raw(FakeExchange(found), model=model, user=mark)
            assert count_bodies(mark) == 0
        finally:
            gc.enable()
    assert found.status >= 400
