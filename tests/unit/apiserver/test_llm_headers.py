"""`x-gateway-*` headers of LLM responses."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.llm.call_headers import ShownHeaders
from gateway_core.billing.counters import AdmissionAnswer, AdmissionCall
from tests.servers.llm_provider import LlmProvider
from tests.unit.apiserver.gateway import Answer, FakeExchange, call
from tests.unit.apiserver.test_llm_calls import BODY, LlmGateway, answer, serve, stream


async def chat(*scripts: Any, shown: str = "public", **fields: Any) -> Answer:
    async with LlmProvider(*scripts) as provider:
        gateway = LlmGateway(provider, llm_headers=shown)
        try:
            return await gateway.chat(**fields)
        finally:
            await gateway.close()
            await gateway.api_parts.llm_providers.close()


def find_ours(found: Answer) -> dict[str, str]:
    return {name: value for name, value in found.headers.items() if name.startswith("x-gateway-")}


async def test_answer_names_model_service_cost_and_times() -> None:
    found = find_ours(await chat(answer))

    times = [float(found.pop(f"x-gateway-{name}-ms")) for name in ("upstream", "overhead")]
    assert all(0 <= milliseconds < 60_000 for milliseconds in times)
    assert found == {
        "x-gateway-model": "chat-1",
        "x-gateway-provider": "sim",
        "x-gateway-cost": "0.000020",
    }


async def test_stream_has_the_headers_that_are_known_at_its_head() -> None:
    found = find_ours(await chat(stream("Hello"), stream=True))

    assert found.keys() == {
        "x-gateway-model",
        "x-gateway-provider",
        "x-gateway-upstream-ms",
        "x-gateway-overhead-ms",
    }


async def test_route_is_named_where_the_deployment_shows_routes() -> None:
    assert find_ours(await chat(answer, shown="routes"))["x-gateway-route"] == "provider-0"


async def test_no_header_is_added_where_they_are_off() -> None:
    assert not find_ours(await chat(answer, shown="off"))


@pytest.mark.parametrize("shown", ["off", "public", "routes"])
@pytest.mark.parametrize("streams", [False, True])
async def test_document_names_each_header_and_those_that_are_always_there(
    shown: ShownHeaders, streams: bool
) -> None:
    async with LlmProvider(stream("Hello") if streams else answer) as provider:
        gateway = LlmGateway(provider, llm_headers=shown)
        found = find_ours(await gateway.chat(stream=streams)).keys()
        document = (await call(gateway.app, "GET", "/openapi.json")).json
        await gateway.close()
        await gateway.api_parts.llm_providers.close()

    described = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["headers"]
    ours = {
        name: reference["$ref"].endswith(".optional")
        for name, reference in described.items()
        if name.startswith("x-gateway-")
    }
    needed = {name for name, is_optional in ours.items() if not is_optional}
    assert needed <= found <= ours.keys()
    assert bool(needed) == (shown != "off")


async def test_refused_call_has_none() -> None:
    found = await chat(answer, model="unknown")

    assert found.status == 404
    assert not find_ours(found)


async def test_overhead_has_admission_and_no_wait_for_the_clients_body() -> None:
    async with serve(answer) as (gateway, _):
        admit = gateway.counters.admit

        async def admit_slowly(call: AdmissionCall) -> AdmissionAnswer:
            await asyncio.sleep(0.1)
            return await admit(call)

        gateway.counters.admit = admit_slowly  # type: ignore[method-assign]
        found = Answer()

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(1)
            return {"type": "http.request", "body": orjson.dumps(BODY)}

        async def send(message: Any) -> None:
            raise AssertionError(message)

        await gateway.ask_raw(receive, send, FakeExchange(found))
        assert 100 <= float(found.headers["x-gateway-overhead-ms"]) < 1000
        labels = {"model": "chat-1", "provider": "provider-0"}
        name = "gateway_llm_overhead_seconds_sum"
        seconds = gateway.api_parts.registry.get_sample_value(name, labels)
        assert seconds is not None
        assert 0.1 <= seconds < 1
