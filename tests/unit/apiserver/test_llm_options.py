"""Fallback models and time-outs that a client asks for in the headers of an LLM call."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway_core.llm.bounds import ITEM_TOKENS, TEMPLATE_TOKENS
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
    make_chat_chunks,
)
from tests.servers.world import wait_for
from tests.unit.apiserver.llm_gateway import (
    BODY,
    PRICE,
    LlmGateway,
    Script,
    answer,
    begin_and_hang,
    fail_with,
    hang,
    read_frames,
    say_and_hang,
    serve_each,
)

DEAR = {"inputPerMillionMicros": 10_000_000, "outputPerMillionMicros": 20_000_000}
SIZE = len(orjson.dumps(BODY))
CHEAP_PROMPT = -(-SIZE // 4)
"""Estimated micro-dollars of the prompt alone, at one a token."""


class TwoModels(LlmGateway):
    """`chat-1` at the first provider, the dearer `chat-2` at the second."""

    def __init__(self, first: LlmProvider, second: LlmProvider) -> None:
        super().__init__(first, second)
        for number, price in ((0, PRICE), (1, DEAR)):
            name = f"provider-{number}"
            routes = [{"name": "main", "providerName": name, "upstreamModel": "up-1"}]
            model_id = f"chat-{number + 1}"
            self.put_model(model_id, action="chat", routes=routes, prices=[price])
        self.first, self.second = first, second


def serve(first: Script, second: Script = answer) -> Any:
    return serve_each(first, second, kind=TwoModels)


FALLBACK = {"x-gateway-fallback-models": "chat-2"}
SOON = {**FALLBACK, "x-gateway-first-byte-timeout": "0.1"}


async def test_fallback_model_answers_and_is_charged_for() -> None:
    async with serve(fail_with(500)) as (gateway, *_):
        found = await gateway.chat(headers=FALLBACK)

        assert found.status == 200, found.body
        assert found.json["model"] == found.headers["x-gateway-model"] == "chat-2"
        record = await gateway.read_record()
        assert (record.model_id, record.micros) == ("chat-2", 200)
        assert await gateway.held() == 0


async def test_first_model_answers_alone_where_it_can() -> None:
    async with serve(answer, fail_with(500)) as (gateway, *_):
        found = await gateway.chat(headers=FALLBACK)

        assert found.json["model"] == "chat-1"
        assert (await gateway.read_record()).micros == 20
        assert not gateway.second.received


async def test_reservation_covers_the_dearest_model() -> None:
    async with serve(answer) as (gateway, *_):
        # enough for the first model, and not for the second
        micros = SIZE + TEMPLATE_TOKENS + ITEM_TOKENS + 2 * 8192
        gateway.put_account("demo", funds={"paidMicros": micros, "bonusMicros": 0})

        assert (await gateway.chat()).status == 200
        found = await gateway.chat(headers=FALLBACK)
        assert found.status == 402


async def test_input_that_a_provider_rejects_gets_no_fallback() -> None:
    async with serve(fail_with(400)) as (gateway, *_):
        found = await gateway.chat(headers=FALLBACK)

        assert found.status == 400
        assert not gateway.second.received


async def test_error_of_the_last_model_is_returned_where_all_fail() -> None:
    async with serve(hang, fail_with(500)) as (gateway, *_):
        found = await gateway.chat(headers=SOON)

        assert (found.status, found.json["error"]["code"]) == (502, "upstream_error")
        # the provider of the first one has the prompt
        assert (await gateway.read_record()).micros == CHEAP_PROMPT


@pytest.mark.parametrize("script", [hang, begin_and_hang])
async def test_model_without_a_first_byte_in_time_is_abandoned_and_its_prompt_charged(
    script: Script,
) -> None:
    async with serve(script) as (gateway, *_):
        found = await gateway.chat(headers=SOON)

        assert (found.status, found.json["model"]) == (200, "chat-2")
        await wait_for(lambda: gateway.first.open_connections == 0)
        assert (await gateway.read_record()).micros == 200 + CHEAP_PROMPT


async def test_comment_is_a_first_byte_although_the_first_frame_is_waited_for() -> None:
    async def comment(reply: Reply, _: Received) -> None:
        await reply.begin()
        await reply.chunk(b": processing\n\n")
        await asyncio.sleep(0.2)
        for frame in make_chat_chunks("Hello"):
            await reply.chunk(frame)
        await reply.end()

    async with serve(comment) as (gateway, *_):
        assert b"Hello" in (await gateway.chat(headers=SOON, stream=True)).body
        assert not gateway.second.received


async def test_call_beyond_its_time_is_504_and_pays_its_prompt() -> None:
    async with serve(hang) as (gateway, *_):
        found = await gateway.chat(headers={"x-gateway-timeout": "0.1"})

        assert (found.status, found.json["error"]["code"]) == (504, "upstream_timeout")
        assert found.headers["x-should-retry"] == "false"
        record = await gateway.read_record()
        assert (record.micros, record.failed, record.estimated) == (CHEAP_PROMPT, True, True)


async def test_stream_beyond_its_time_ends_with_an_error_frame() -> None:
    async with serve(say_and_hang) as (gateway, *_):
        found = await gateway.chat(headers={"x-gateway-timeout": "0.2"}, stream=True)

        *_, error = read_frames(found.body)
        assert error["error"]["code"] == "upstream_timeout"
        record = await gateway.read_record()
        assert (record.failed, record.output_tokens) == (True, 2)


async def test_time_outs_of_clients_open_no_circuit() -> None:
    async def hang_unless_patient(reply: Reply, received: Received) -> None:
        if received.body["messages"][0]["content"] == "Hi":
            await asyncio.Event().wait()
        await reply.whole(make_chat_answer())

    async with serve(hang_unless_patient) as (gateway, *_):
        calls = (
            gateway.chat(headers={header: "0.1"}, stream=number % 2 == 0)
            for number in range(6)
            for header in ("x-gateway-timeout", "x-gateway-first-byte-timeout")
        )
        assert {found.status for found in await asyncio.gather(*calls)} == {504}

        patient = await gateway.chat(messages=[{"role": "user", "content": "Hello"}])
        assert patient.status == 200


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-gateway-timeout", "soon"),
        ("x-gateway-timeout", "0"),
        ("x-gateway-timeout", "-1"),
        ("x-gateway-timeout", "nan"),
        ("x-gateway-timeout", "1e9"),
        ("x-gateway-first-byte-timeout", "3601"),
        ("x-gateway-first-byte-timeout", ""),
        ("x-gateway-fallback-models", ""),
        ("x-gateway-fallback-models", "chat-2,"),
        ("x-gateway-fallback-models", "chat-2,chat-2"),
        ("x-gateway-fallback-models", "a,b,c,d,e"),
        ("x-gateway-fallback-models", "x" * 254),
        ("x-gateway-fallback-models", "ä"),
    ],
)
async def test_unusable_header_is_refused_by_its_name(header: str, value: str) -> None:
    async with serve(answer) as (gateway, *_):
        found = await gateway.chat(headers={header: value})

        assert (found.status, found.json["error"]["param"]) == (400, header)
        assert not gateway.first.received


async def test_fallback_must_be_a_model_that_the_key_may_call() -> None:
    async with serve(answer) as (gateway, *_):
        gateway.change_key(gateway.key, allowedModels=["chat-1"])

        found = await gateway.chat(headers=FALLBACK)
        assert (found.status, found.json["error"]["code"]) == (403, "model_not_allowed")
        found = await gateway.chat(headers={"x-gateway-fallback-models": "nothing"})
        assert (found.status, found.json["error"]["code"]) == (404, "model_not_found")
