"""Answers that are kept for a key or a guardrail, and sent again for the same request."""

import asyncio
from typing import Any

import pytest

from tests.fakes.llm_cases import CASES
from tests.servers.llm_provider import (
    LlmProvider,
    Received,
    Reply,
    make_chat_answer,
)
from tests.unit.apiserver import llm_gateway
from tests.unit.apiserver.gateway import Answer
from tests.unit.apiserver.llm_gateway import (
    LlmGateway,
    Script,
    answer,
    break_off,
    fail_with,
    stream,
)
from tests.unit.apiserver.llm_harness import TEXT, Harness, encode


class CachingGateway(LlmGateway):
    """A gateway whose first key keeps answers for a minute."""

    def __init__(self, *providers: LlmProvider) -> None:
        super().__init__(*providers)
        self.change_key(self.key, cacheSeconds=60)

    async def ask(self, *, cache: str = "", **fields: Any) -> Answer:
        found = await self.chat(headers={"Cache-Control": cache} if cache else {}, **fields)
        # an answer is kept after it was sent
        for _ in range(5):
            await asyncio.sleep(0)
        return found

    async def list_outcomes(self, *calls: dict[str, Any]) -> list[str | None]:
        return [(await self.ask(**each)).headers.get("x-gateway-cache") for each in calls]


def serve(*scripts: Script) -> Any:
    return llm_gateway.serve(*scripts, kind=CachingGateway)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_same_request_gets_the_kept_answer_at_no_cost(is_stream: bool) -> None:
    async with serve(stream("He", "llo") if is_stream else answer) as (gateway, provider):
        first = await gateway.ask(stream=is_stream)
        second = await gateway.ask(stream=is_stream)

        assert first.headers["x-gateway-cache"] == "miss"
        assert second.headers["x-gateway-cache"] == "hit"
        assert second.headers["x-gateway-cost"] == "0.000000"
        assert second.headers["content-type"] == first.headers["content-type"]
        assert (second.status, second.body) == (200, first.body)
        assert len(provider.received) == 1
        charged, kept = sorted(await gateway.close(), key=lambda record: record.from_cache)
        assert charged.micros > 0
        assert (kept.micros, kept.from_cache, kept.reached, kept.failed) == (0, True, False, False)
        assert await gateway.held() == 0


@pytest.mark.parametrize("name", CASES)
async def test_stream_of_each_dialect_is_sent_again_as_it_was(name: str) -> None:
    case = CASES[name]

    async def script(reply: Reply, _: Received) -> None:
        await reply.raw(encode(case))

    async with LlmProvider(script) as provider:
        harness = Harness(case, provider)
        harness.gateway.change_key(harness.gateway.key, cacheSeconds=60)
        first = await harness.ask(1)
        await harness.gateway.answer_cache.close()
        second = await harness.ask(1)

        assert (case.read(first.body).text, first.headers["x-gateway-cache"]) == (TEXT, "miss")
        assert (second.body, second.headers["x-gateway-cache"]) == (first.body, "hit")
        assert second.headers["content-type"] == first.headers["content-type"]
        assert len(provider.received) == 1
        await harness.end()


async def test_order_of_fields_makes_no_other_request() -> None:
    async with serve(answer) as (gateway, _):
        calls = {"temperature": 0, "seed": 1}, {"seed": 1, "temperature": 0}, {"seed": 2}
        assert await gateway.list_outcomes(*calls) == ["miss", "hit", "miss"]


async def test_answer_is_kept_only_for_its_time_and_its_model() -> None:
    async with serve(answer) as (gateway, _):
        await gateway.ask()
        gateway.answers.now += 61
        assert await gateway.list_outcomes({}, {}) == ["miss", "hit"]

        routes = [{"name": "main", "providerName": "provider-0", "upstreamModel": "up-2"}]
        prices = [{"inputPerMillionMicros": 1}]
        gateway.put_model("chat-1", action="chat", routes=routes, prices=prices)
        assert await gateway.list_outcomes({}) == ["miss"]


async def test_keys_do_not_share_answers_unless_a_guardrail_has_the_cache() -> None:
    async with serve(answer) as (gateway, _):
        sibling = gateway.put_key("demo", cacheSeconds=60)
        foreign = gateway.put_key("guest", cacheSeconds=60)
        calls = {}, {"key": sibling}, {"key": foreign}, {"key": gateway.other_key}
        assert await gateway.list_outcomes(*calls) == ["miss", "miss", "miss", None]

        one, two = gateway.put_key("demo"), gateway.put_key("demo")
        gateway.put_guardrail("grd-pool", one, two, cacheSeconds=60)
        assert await gateway.list_outcomes({"key": one}, {"key": two}) == ["miss", "hit"]


async def test_key_that_may_not_call_the_model_gets_no_kept_answer() -> None:
    async with serve(answer) as (gateway, _):
        await gateway.ask()
        gateway.change_key(gateway.key, allowedModels=["other"])

        assert (await gateway.ask()).status == 403


async def test_kept_answer_needs_no_balance() -> None:
    async with serve(answer) as (gateway, _):
        await gateway.ask()
        gateway.put_account("demo", funds={"paidMicros": 20, "bonusMicros": 0})

        assert (await gateway.ask()).status == 200
        assert (await gateway.ask(seed=1)).status == 402


async def test_errors_and_broken_streams_are_not_kept() -> None:

    async def say_nothing(reply: Reply, _: Received) -> None:
        await reply.whole({**make_chat_answer(), "choices": []})

    async with serve(fail_with(400), break_off, say_nothing, answer) as (gateway, _):
        calls = {}, {"stream": True}, {}
        assert await gateway.list_outcomes(*calls) == ["miss", "miss", "miss"]
        assert not gateway.answers.kept


async def test_client_may_forbid_the_cache() -> None:
    async with serve(answer) as (gateway, _):
        calls = {"cache": "no-store"}, {"cache": "no-store"}
        assert await gateway.list_outcomes(*calls) == [None, None]
        refreshing = {}, {"cache": "no-cache"}, {}
        assert await gateway.list_outcomes(*refreshing) == ["miss", "miss", "hit"]


async def test_answer_beyond_the_bound_is_not_kept() -> None:
    async def talk(reply: Reply, received: Received) -> None:
        if received.body.get("stream"):
            await stream(*["x" * 10_000] * 30)(reply, received)
        else:
            await reply.whole(make_chat_answer("x" * 300_000))

    async with serve(talk) as (gateway, _):
        for is_stream in (False, True):
            calls = [{"stream": is_stream}] * 2
            assert await gateway.list_outcomes(*calls) == ["miss", "miss"]


@pytest.mark.parametrize("trouble", ["away", "hangs"])
async def test_store_that_does_not_answer_is_a_miss(trouble: str) -> None:
    async with serve(answer) as (gateway, _):
        await gateway.ask()
        setattr(gateway.answers, trouble, True)
        assert await gateway.list_outcomes({}) == ["miss"]

        setattr(gateway.answers, trouble, False)
        # the store is left alone for a while
        assert await gateway.list_outcomes({}) == ["miss"]
        gateway.answer_cache._rests_until = 0.0
        assert await gateway.list_outcomes({}) == ["hit"]


async def test_answer_of_a_fallback_is_not_kept_for_the_first_model() -> None:
    async with serve(fail_with(500), answer) as (gateway, _):
        routes = [{"name": "main", "providerName": "provider-0", "upstreamModel": "up-1"}]
        gateway.put_model(
            "chat-2", action="chat", routes=routes, prices=[{"inputPerMillionMicros": 1}]
        )
        found = await gateway.chat(headers={"x-gateway-fallback-models": "chat-2"})

        assert found.json["model"] == "chat-2"
        assert await gateway.list_outcomes({}) == ["miss"]
