"""What calls of language models cost that end without their answer."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.llm import large_answers
from gateway_core.llm.bounds import ITEM_TOKENS, TEMPLATE_TOKENS
from gateway_core.llm.formats import estimates
from tests.servers.llm_provider import Received, Reply, make_chat_answer, make_chat_chunks
from tests.servers.world import wait_for
from tests.unit.apiserver.gateway import Answer, FakeExchange
from tests.unit.apiserver.llm_gateway import (
    BODY,
    CHAT,
    answer,
    begin_and_hang,
    fail_with,
    hang,
    serve,
    shorten_idle_time,
)

QUOTES = "/api/v1/price_quotes"


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_call_of_a_silent_provider_is_504_and_pays_its_prompt(
    monkeypatch: pytest.MonkeyPatch, *, begins: bool, streams: bool
) -> None:
    shorten_idle_time(monkeypatch)

    script = begin_and_hang if begins else hang
    async with serve(script) as (gateway, _):
        found = await gateway.chat(stream=streams)

        assert (found.status, found.json["error"]["code"]) == (504, "upstream_timeout")
        record = await gateway.read_record()
        prompt = -(-len(orjson.dumps({**BODY, "stream": streams})) // 4)
        assert (record.micros, record.failed, record.estimated) == (prompt, True, True)
        assert record.output_tokens == 0


async def test_provider_that_times_out_by_its_own_word_is_504_and_free() -> None:
    async with serve(fail_with(504)) as (gateway, _):
        assert (await gateway.chat()).status == 504
        record = await gateway.read_record()
        assert (record.micros, record.failed) == (0, True)


async def test_client_that_leaves_pays_for_what_it_could_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimates, "UNSEEN_AFTER_SECONDS", -1000.0)

    for fields, tokens in (
        ({"max_tokens": 30_000}, range(20_000, 21_000)),
        ({"max_tokens": 7}, [7]),
    ):
        async with serve(hang) as (gateway, provider):
            await gateway.leave_after(lambda _, provider=provider: provider.received, **fields)
            record = await gateway.read_record()
            assert record.output_tokens in tokens
            assert record.failed


async def test_provider_that_reports_more_than_was_reserved_is_counted() -> None:
    async def script(reply: Reply, received: Received) -> None:
        await reply.whole(make_chat_answer(completion_tokens=received.body["max_tokens"] + 1))

    async with serve(script) as (gateway, _):
        found = await gateway.chat(max_tokens=7)
        assert found.status == 200
        name, labels = "gateway_llm_calls_beyond_bound_total", {"model": "chat-1"}
        assert gateway.api_parts.registry.get_sample_value(name, labels) == 1
        record = await gateway.read_record()
        assert (record.input_tokens, record.output_tokens) == (10, 8)
        assert record.micros == 10 + 2 * 8, "the reservation has room for it, by its input"


async def test_large_answers_are_sent_whole_and_an_account_has_half_of_their_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_answers, "MOST_UNITS", 8)
    monkeypatch.setattr(large_answers, "WAIT_SECONDS", 0.05)
    text = "x" * (3 * 1024 * 1024)
    taken = asyncio.Event()

    async def script(reply: Reply, _: Received) -> None:
        await reply.whole(make_chat_answer(text))

    async with serve(script) as (gateway, _):
        got = bytearray()

        async def send(message: Any) -> None:
            got.extend(message.get("body", b""))
            if len(got) > 1000 and not message.get("more_body"):
                # a server lets the application wait here while the client is slow
                await taken.wait()

        slow = asyncio.create_task(gateway.ask_raw(FakeExchange(Answer()), send=send))
        await wait_for(lambda: len(got) > 1000)
        dropped = await gateway.chat()
        assert (dropped.status, dropped.json["error"]["code"]) == (503, "service_unavailable")
        other = await gateway.chat(key=gateway.other_key)
        assert other.json["choices"][0]["message"]["content"] == text
        taken.set()
        await slow
        assert (await gateway.chat()).json["choices"][0]["message"]["content"] == text
        assert orjson.loads(got)["choices"][0]["message"]["content"] == text
        records = await gateway.close()
        assert [record.failed for record in records].count(True) == 1
        (failed,) = [record for record in records if record.failed]
        assert failed.estimated
        assert failed.output_tokens > large_answers.LARGE_ANSWER_BYTES // 4


async def test_answer_that_is_too_long_is_502_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "MOST_BYTES", 500_000)

    async def script(reply: Reply, _: Received) -> None:
        await reply.whole(make_chat_answer("x" * 600_000))

    async with serve(script) as (gateway, _):
        found = await gateway.chat(max_tokens=1000)
        assert (found.status, found.json["error"]["code"]) == (502, "upstream_error")
        record = await gateway.read_record()
        assert (record.failed, record.output_tokens) == (True, 1000)


async def test_reservation_is_that_of_the_compact_body_as_in_a_quote() -> None:
    async with serve(answer) as (gateway, _):
        prompt = TEMPLATE_TOKENS + ITEM_TOKENS + len(orjson.dumps(BODY))
        micros = prompt + 2 * 8192
        for funds, status in ((micros - 1, 402), (micros, 200)):
            gateway.put_account("demo", funds={"paidMicros": funds, "bonusMicros": 0})
            indented = json.dumps(BODY, indent=8).encode()
            assert (await gateway.create(indented, path=CHAT)).status == status
        quote = {"service": "sim", "action": "chat", "params": BODY}
        found = await gateway.create(quote, path=QUOTES)
        assert found.json["price_quote"]["reservation_amount_cents"] == -(-micros // 10_000)


@pytest.mark.parametrize(
    ("params", "errors"),
    [
        ({**BODY, "service_tier": "priority"}, {"service_tier"}),
        ({"model": 5, "messages": []}, {"model"}),
        ({"model": 5, "contents": [{}]}, {"model"}),
        ({"model": 5, "input": "Hi"}, {"model"}),
    ],
)
async def test_quote_refuses_an_unknown_tier_and_a_model_that_is_no_string(
    params: dict[str, Any], errors: set[str]
) -> None:
    async with serve() as (gateway, _):
        quote = {"service": "sim", "action": "chat", "params": params}
        found = await gateway.create(quote, path=QUOTES)
        assert (found.status, set(found.json["errors"])) == (400, errors)


async def test_client_that_leaves_after_a_reported_prompt_pays_an_estimate_of_the_output() -> None:
    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        chunk = orjson.loads(make_chat_chunks("Hello")[1][6:])
        chunk["usage"] = {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}
        await reply.chunk(b"data: %b\n\n" % orjson.dumps(chunk))
        await asyncio.Event().wait()

    async with serve(script) as (gateway, _):
        await gateway.leave_after(lambda got: b"Hello" in got, stream=True)
        record = await gateway.read_record()
        assert (record.input_tokens, record.output_tokens, record.estimated) == (10, 2, True)


async def test_client_that_leaves_after_a_reported_usage_pays_that() -> None:
    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        chunk = orjson.loads(make_chat_chunks("Hello")[1][6:])
        chunk["usage"] = {"prompt_tokens": 10, "completion_tokens": 900}
        await reply.chunk(b"data: %b\n\n" % orjson.dumps(chunk))
        await asyncio.Event().wait()

    async with serve(script) as (gateway, _):
        await gateway.leave_after(lambda got: b"Hello" in got, stream=True)
        record = await gateway.read_record()
        assert (record.input_tokens, record.output_tokens, record.estimated) == (10, 900, False)
