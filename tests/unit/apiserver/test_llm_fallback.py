"""Which provider answers a call while others fail, are limited or work again."""

import asyncio
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from gateway_apiserver.surfaces.llm import running
from gateway_core.llm import routing
from gateway_core.llm.routing import LEAST_FAILURES, Pace
from tests.servers.llm_provider import Received, Reply, make_chat_answer, make_chat_chunks
from tests.unit.apiserver.llm_gateway import (
    LlmGateway,
    Script,
    answer,
    fail_with,
    serve_each,
    stream,
)

fail, limit = fail_with(500), fail_with(429, retry_after="30")


async def chat(gateway: LlmGateway, times: int = 1) -> set[int]:
    """The statuses of some calls, one after the other."""
    return {(await gateway.chat()).status for _ in range(times)}


async def test_open_circuit_spares_the_failing_provider() -> None:
    async with serve_each(fail, answer) as (gateway, first, second):
        assert await chat(gateway, LEAST_FAILURES + 5) == {200}
        assert len(first.received) == LEAST_FAILURES
        assert len(second.received) == LEAST_FAILURES + 5


async def test_call_is_sent_to_no_provider_while_all_circuits_are_open() -> None:
    async with serve_each(fail, fail) as (gateway, first, second):
        assert await chat(gateway, LEAST_FAILURES) == {502}
        assert await chat(gateway, 3) == {503}
        assert len(first.received) == len(second.received) == LEAST_FAILURES


async def test_provider_that_works_again_answers_once_the_others_fail() -> None:
    async with serve_each(fail, answer) as (gateway, first, second):
        await chat(gateway, LEAST_FAILURES)
        first.scripts, second.scripts = [answer], [fail]

        assert await chat(gateway, 3) == {200}
        # the first such call closes the circuit, so the next ones go there at once
        assert len(first.received) == LEAST_FAILURES + 3
        assert len(second.received) == LEAST_FAILURES + 1


async def test_calls_go_on_with_another_credential_while_one_is_limited() -> None:
    async def limit_first(reply: Reply, received: Received) -> None:
        limited = received.headers["authorization"] == "Bearer first"
        await (limit if limited else answer)(reply, received)

    async with serve_each(limit_first, fail) as (gateway, provider, other):
        gateway.give_credentials(provider, "first", "second", "third")

        assert await chat(gateway, 5) == {200}
        used = [request.headers["authorization"].split()[1] for request in provider.received]
        assert used == ["first", "second", "third", "second", "third", "second"]
        assert other.received == []


@patch("gateway_core.llm.upstream.Pace", lambda rate: Pace(rate / 1000))
async def test_calls_beyond_a_providers_rate_go_to_another_or_get_429() -> None:
    async with serve_each(answer, answer) as (gateway, first, second):
        for number, provider in enumerate((first, second)):
            gateway.put_provider(provider, f"provider-{number}", {"requestsPerSecond": 1})
        answers = [await gateway.chat() for _ in range(3)]

        assert [found.status for found in answers] == [200, 200, 429]
        assert int(answers[2].headers["retry-after"]) > 1
        assert (len(first.received), len(second.received)) == (1, 1)


def begin(*pieces: bytes) -> Script:
    """A provider whose stream is these pieces, sent at once."""

    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        await reply.raw(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces))
        await reply.end()

    return script


def drip(*pieces: bytes) -> Script:
    """A provider whose stream is these pieces, each sent by itself."""

    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        for piece in pieces:
            await reply.chunk(piece)
            await asyncio.sleep(0.005)
        await reply.end()

    return script


async def cut(reply: Reply, _: Received) -> None:
    await reply.begin()
    reply.cut()


async def end(reply: Reply, _: Received) -> None:
    await reply.begin()
    await reply.end()


async def report(reply: Reply, _: Received) -> None:
    await reply.whole({"error": {"message": "overloaded", "code": 503}})


async def report_and_hang(reply: Reply, _: Received) -> None:
    await reply.begin()
    await reply.chunk(b'{"error": {"message": "no",')
    await reply.chunk(b'"code": 503}}')
    await asyncio.Event().wait()


FAILED_STREAMS = {
    "document without an end": (report_and_hang, 503),
    "whole answer": (answer, 502),
    "error object": (report, 503),
    "connection that breaks off": (cut, 502),
    "nothing": (end, 502),
    "error frame": (begin(b'data: {"error": {"message": "no", "code": 429}}\n\n'), 429),
    "error event": (begin(b': hi\n\nevent: error\ndata: {"type":"error","code":"x"}\n\n'), 502),
    "pieces": (begin(b"event: error\n", b'data: {"error": {"code": 503}}\n\n'), 503),
    "after a comment": (
        drip(b": processing\n\n", b'data: {"error": {"message": "no", "code": 503}}\n\n'),
        503,
    ),
    "frame that is cut": (drip(b'data: {"er', b'ror": {"message": "no", "code": 503}}\n\n'), 503),
    "frame that breaks off": (drip(b'data: {"choi'), 502),
    "document in pieces": (drip(b'{"error": {"message":', b' "no", "code": 503}}'), 503),
    "comment and the end": (begin(b": processing\n\n"), 502),
    "no blank line": (begin(b'data: {"error": {"code": 503}}\n'), 503),
    "refused input": (begin(b'data: {"error":{"message":"bad","code":400}}\r\n\r\n'), 400),
}


LACK = "insufficient_system_resource"
OVERLOADED = {"error": {"message": "no", "code": "502"}}
SILENT_FAILURES: dict[str, tuple[Any, list[Any], int]] = {
    "error": (OVERLOADED, [OVERLOADED], 502),
    "word of failure": (
        make_chat_answer("") | {"choices": [{"message": {}, "finish_reason": LACK}]},
        [{"choices": [{"delta": {}, "finish_reason": LACK}]}],
        502,
    ),
    "not of the format": ({"hello": 1}, [{"hello": 1}], 502),
}


@pytest.mark.parametrize(("script", "status"), FAILED_STREAMS.values(), ids=FAILED_STREAMS)
async def test_stream_that_fails_as_it_begins_is_answered_by_the_next_provider(
    script: Script, status: int
) -> None:
    async with serve_each(script, stream("Hello")) as (gateway, first, second):
        found = await gateway.chat(stream=True)
        # what one provider refuses is not tried elsewhere
        assert found.status == (400 if status == 400 else 200)
        assert (b"Hello" in found.body) == (status != 400)

        first.scripts, second.scripts = [fail], [script]
        found = await gateway.chat(stream=True)
        assert (found.status, list(found.json)) == (status, ["error"])


async def test_stream_without_output_begins_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.05)

    async def pause(reply: Reply, _: Received) -> None:
        role, *frames = make_chat_chunks("Hello")
        await reply.begin()
        await reply.chunk(role)
        await asyncio.sleep(0.2)
        for frame in frames:
            await reply.chunk(frame)
        await reply.end()

    async with serve_each(pause, fail) as (gateway, _, other):
        found = await gateway.chat(stream=True)
        assert found.body.startswith(b": keep-alive\n\ndata: {")
        assert b"Hello" in found.body
        assert not other.received


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", SILENT_FAILURES)
async def test_failure_before_output_is_answered_by_the_next_provider(
    monkeypatch: pytest.MonkeyPatch, name: str, *, streams: bool, is_slow: bool
) -> None:
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.05 if is_slow else 10.0)
    whole, frames, status = SILENT_FAILURES[name]

    async def script(reply: Reply, _: Received) -> None:
        if is_slow:
            await asyncio.sleep(0.1)
        if not streams:
            await reply.whole(whole)
            return
        await reply.begin()
        for frame in make_chat_chunks("")[:1]:
            await reply.chunk(frame)
        for frame in frames:
            await reply.chunk(b"data: %b\n\n" % orjson.dumps(frame))
        await reply.end()

    hello = stream("Hello") if streams else answer
    async with serve_each(script, hello) as (gateway, _, other):
        found = await gateway.chat(stream=streams)
        assert b"Hello" in found.body
        assert b"error" not in found.body

        other.scripts = [script]
        found = await gateway.chat(stream=streams)
        if streams and is_slow:
            *_, last = found.body.strip().split(b"\n\n")
            assert found.status == 200
            assert b"choices" not in found.body
            assert orjson.loads(last.removeprefix(b"data: "))["error"]["message"]
        else:
            assert (found.status, list(found.json)) == (status, ["error"])
        records = await gateway.close()
        assert [record.micros for record in records if record.failed] == [0]


RESPONSE = {"id": "resp_p", "object": "response", "status": "in_progress", "output": []}
TEXT_DELTA = {"item_id": "m1", "output_index": 0, "content_index": 0, "delta": "Hello"}


@pytest.mark.parametrize("has_responses", [False, True])
async def test_failure_beside_the_first_output_ends_the_response_that_began_early(
    monkeypatch: pytest.MonkeyPatch, *, has_responses: bool
) -> None:
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.05)

    async def script(reply: Reply, _: Received) -> None:
        await reply.begin()
        await asyncio.sleep(0.15)
        if has_responses:
            events = [
                {"type": "response.created", "sequence_number": 0, "response": RESPONSE},
                {"type": "response.output_text.delta", "sequence_number": 1, **TEXT_DELTA},
                {"type": "error", "sequence_number": 2, "code": "server_error", "message": "no"},
            ]
            frames = [
                b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))
                for event in events
            ]
        else:
            frames = make_chat_chunks("Hello")[:2]
            frames.append(b"data: %b\n\n" % orjson.dumps(OVERLOADED))
        await reply.chunk(b"".join(frames))
        await reply.end()

    async with serve_each(script) as (gateway, provider):
        gateway.put_provider(provider, hasResponses=has_responses)
        body = {"model": "chat-1", "input": "Hi", "stream": True}
        found = await gateway.create(body, path="/v1/responses")
        frames = found.body.decode().strip().split("\n\n")
        events = [orjson.loads(frame.partition("\ndata: ")[2]) for frame in frames]
        kinds = [event["type"] for event in events]
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-2:] == ["error", "response.failed"]
        assert kinds.count("response.created") == kinds.count("response.output_text.delta") == 1
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        ids = {event["response"]["id"] for event in events if "response" in event}
        assert len(ids) == 1


async def test_refused_key_without_an_alternative_is_tried_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "PROBE_REFUSED_SECONDS", 0.2)
    async with serve_each(fail_with(401)) as (gateway, provider):
        assert await chat(gateway, 3) == {502}
        assert len(provider.received) == 1
        await asyncio.sleep(0.25)
        assert await chat(gateway, 3) == {502}
        assert len(provider.received) == 2
        provider.scripts = [answer]
        await asyncio.sleep(0.25)
        assert await chat(gateway, 3) == {200}


async def test_refused_key_is_left_alone_while_another_provider_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "PROBE_REFUSED_SECONDS", 0.0)
    async with serve_each(fail_with(401), answer) as (gateway, provider, _):
        assert await chat(gateway, 5) == {200}
        assert len(provider.received) == 1
