"""Fallbacks, time-outs and cached answers of calls, over real processes."""

import asyncio

from tests.integration.llm.models import BODY, reply_chat, serve_model
from tests.servers.llm_provider import LlmProvider, Received, Reply, make_chat_answer
from tests.servers.tenants import make_key
from tests.servers.world import wait_for

CHAT = "/v1/chat/completions"
MICROS = 10 * 1 + 5 * 2
"""Cost of `make_chat_answer` at the prices of the model."""


async def count_micros(client, manager):
    """The cost of all calls of the account that are counted so far."""
    answer = await client.request("GET", "/api/v1/management/usage", key=manager)
    return sum(row["cost_micros"] for row in answer.body["data"])


async def test_fallback_model_answers_where_the_first_fails_or_is_late(world, client):
    async def fail_after_the_first(reply: Reply, received: Received) -> None:
        text = received.body["messages"][0]["content"]
        if text == "fail":
            await reply.whole({}, 500)
        elif text == "wait":
            await asyncio.Event().wait()
        else:
            await reply.whole(make_chat_answer())

    async with LlmProvider(fail_after_the_first) as one, LlmProvider(reply_chat) as two:
        first = await serve_model(world, client, one)
        second = await serve_model(world, client, two)
        for text in ("fail", "wait"):
            answer = await client.request(
                "POST",
                CHAT,
                body={"model": first, "messages": [{"role": "user", "content": text}]},
                headers={
                    "x-gateway-fallback-models": second,
                    "x-gateway-first-byte-timeout": "0.5",
                },
            )
            assert answer.status == 200, answer.raw
            assert answer.body["model"] == answer.headers["x-gateway-model"] == second
            # the name of the provider's resource is not shown
            assert answer.headers["x-gateway-provider"] == second
            assert float(answer.headers["x-gateway-cost"]) >= MICROS / 1e6

        answer = await client.request(
            "POST",
            CHAT,
            body={"model": first, "messages": [{"role": "user", "content": "wait"}]},
            headers={"x-gateway-timeout": "0.5"},
        )
        assert (answer.status, answer.body["error"]["code"]) == (504, "upstream_timeout")
        # the client's own time-outs are no failures of the provider
        assert (await client.request("POST", CHAT, body={**BODY, "model": first})).status == 200


async def test_cache_of_a_key_is_set_by_its_tenant_and_answers_at_no_cost(world, client):
    async with LlmProvider(reply_chat) as provider:
        model = await serve_model(world, client, provider)
        manager = make_key(world, client.account, "Management").plaintext

        async def make_caching_key():
            body = {"name": "cache", "cache_seconds": 60}
            made = await client.request("POST", "/api/v1/management/keys", body=body, key=manager)
            return made.body if made.status == 201 else None

        made = await wait_for(make_caching_key, what="the management key")
        assert made["cache_seconds"] == 60
        asked = len(provider.received)

        for is_stream in (False, True):
            body = {**BODY, "model": model, "stream": is_stream, "seed": 1}

            async def call(body=body):
                return await client.request("POST", CHAT, body=body, key=made["secret"])

            first = await call()
            assert first.headers["x-gateway-cache"] == "miss"

            async def find_hit(call=call, first=first):
                answer = await call()
                assert answer.raw == first.raw
                return answer.headers["x-gateway-cache"] == "hit"

            # an answer is kept after it was sent
            await wait_for(find_hit, what="the kept answer")
            calls = len(provider.received)
            assert await find_hit()
            assert len(provider.received) == calls

        # a key without a cache has no share in it
        other = await client.request("POST", CHAT, body={**BODY, "model": model, "seed": 1})
        assert "x-gateway-cache" not in other.headers

        sent = provider.received[asked:]
        streams = sum(received.body.get("stream") is True for received in sent)
        # the first call of the test made the model known
        expected = (1 + len(sent) - streams) * MICROS + streams * (10 * 1 + 2 * 2)

        async def is_charged():
            return await count_micros(client, manager) == expected

        await wait_for(is_charged, what="the usage of the calls that reached the provider")
