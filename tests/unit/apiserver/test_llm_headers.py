"""`x-gateway-*` headers of LLM responses."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.llm.call_headers import MOST_DROPPED_BYTES, ShownHeaders
from gateway_core.billing.counters import AdmissionAnswer, AdmissionCall
from tests.unit.apiserver.gateway import Answer, FakeExchange
from tests.unit.apiserver.llm_gateway import BODY, Script, answer, serve, stream


async def chat(script: Script, shown: str = "public", **fields: Any) -> dict[str, str]:
    """The gateway's headers of the response to one call."""
    async with serve(script, llm_headers=shown) as (gateway, _):
        return find_ours(await gateway.chat(**fields))


def find_ours(found: Answer) -> dict[str, str]:
    return {name: value for name, value in found.headers.items() if name.startswith("x-gateway-")}


async def test_answer_names_model_service_cost_and_times() -> None:
    found = await chat(answer)

    times = [float(found.pop(f"x-gateway-{name}-ms")) for name in ("upstream", "overhead")]
    assert all(0 <= milliseconds < 60_000 for milliseconds in times)
    assert found == {
        "x-gateway-model": "chat-1",
        "x-gateway-provider": "sim",
        "x-gateway-cost": "0.000020",
    }


async def test_stream_has_the_headers_that_are_known_at_its_head() -> None:
    found = await chat(stream("Hello"), stream=True)
    assert found.keys() == {
        "x-gateway-model",
        "x-gateway-provider",
        "x-gateway-upstream-ms",
        "x-gateway-overhead-ms",
    }


async def test_headers_follow_the_setting_and_refused_calls_have_none() -> None:
    assert (await chat(answer, "routes"))["x-gateway-route"] == "provider-0"
    assert not await chat(answer, "off")
    assert not await chat(answer, model="unknown")


async def test_tools_that_are_left_out_are_named_in_every_setting() -> None:
    own = {"type": "function", "function": {"name": "f"}}
    odd = [{"type": kind} for kind in ("web_search", "x\r\nset-cookie: a", "é", "x" * 2000)]
    for shown in ("off", "public"):
        found = await chat(answer, shown, tools=[own, *odd])
        assert found["x-gateway-dropped"].startswith("web_search, xxx")
        assert len(found["x-gateway-dropped"]) == MOST_DROPPED_BYTES


@pytest.mark.parametrize("shown", ["off", "public", "routes"])
@pytest.mark.parametrize("streams", [False, True])
async def test_document_names_each_header(shown: ShownHeaders, streams: bool) -> None:
    script = stream("Hello") if streams else answer
    async with serve(script, llm_headers=shown) as (gateway, _):
        found = find_ours(await gateway.chat(stream=streams)).keys()
        document = (await gateway.get("/openapi.json")).json

    described = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["headers"]
    assert found <= described.keys()
    assert ("x-gateway-model" in described) == (shown != "off")


async def test_overhead_has_admission_and_no_wait_for_the_clients_body() -> None:
    async with serve(answer) as (gateway, _):
        admit, clock = gateway.counters.admit, asyncio.get_running_loop().time

        async def admit_slowly(call: AdmissionCall) -> AdmissionAnswer:
            await asyncio.sleep(0.05)
            return await admit(call)

        gateway.counters.admit = admit_slowly
        found, began = Answer(), clock()

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.2)
            return {"type": "http.request", "body": orjson.dumps(BODY)}

        await gateway.ask_raw(FakeExchange(found), receive)
        most = clock() - began - 0.19
        assert 50 <= float(found.headers["x-gateway-overhead-ms"]) <= most * 1000
        labels = {"model": "chat-1", "provider": "provider-0"}
        name = "gateway_llm_overhead_seconds_sum"
        seconds = gateway.api_parts.registry.get_sample_value(name, labels)
        assert seconds is not None
        assert 0.05 <= seconds <= most
