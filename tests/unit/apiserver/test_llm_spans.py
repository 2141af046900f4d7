"""Spans of LLM calls: attributes of the GenAI conventions, and no content."""

import asyncio
from typing import Any

from opentelemetry.trace import SpanKind

from tests.fakes.tracing import FakeSpan, FakeTracer
from tests.servers.llm_provider import LlmProvider, Received, Reply, make_chat_chunks
from tests.servers.world import wait_for
from tests.unit.apiserver.test_llm_calls import LlmGateway, answer, stream

PROMPT = "a secret prompt"


async def refuse(reply: Reply, _: Received) -> None:
    await reply.whole({"error": {"message": PROMPT}}, 500)


async def cut(reply: Reply, _: Received) -> None:
    await reply.begin()
    for frame in make_chat_chunks("Hello")[:2]:
        await reply.chunk(frame)
    reply.cut()


async def trace(*scripts: Any, **fields: Any) -> list[FakeSpan]:
    """The spans of the attempts of one call, at one provider for each script."""
    tracer = FakeTracer()
    providers = [LlmProvider(script) for script in scripts]
    for provider in providers:
        await provider.__aenter__()
    gateway = LlmGateway(*providers, tracer=tracer)
    messages = [{"role": "user", "content": PROMPT}]
    await gateway.chat(messages=messages, **fields)
    await gateway.close()
    await gateway.api_parts.llm_providers.close()
    for provider in providers:
        await provider.__aexit__()
    assert all(span.is_ended for span in tracer.spans)
    assert PROMPT not in repr([vars(span) for span in tracer.spans])
    (top,) = (span for span in tracer.spans if span.parent is None)
    found = [span for span in tracer.spans if span.name == "chat chat-1"]
    for span in found:
        assert span.parent == top.context
        assert span.kind is SpanKind.CLIENT
    return found


async def test_call_has_models_tokens_and_finish_reasons() -> None:
    (span,) = await trace(answer, max_tokens=7)
    assert span.problem is None
    port = span.facts.pop("server.port")
    assert isinstance(port, int)
    assert span.facts == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "chat-1",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.response.model": "up-1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "gateway.usage_estimated": False,
        "gateway.outcome": "completed",
        "gateway.provider": "provider-0",
        "server.address": "127.0.0.1",
    }


async def test_stream_has_its_time_to_the_first_chunk() -> None:
    (span,) = await trace(stream("Hello", "you"), stream=True)
    assert span.facts["gen_ai.request.stream"] is True
    assert span.facts["gen_ai.response.finish_reasons"] == ["stop"]
    assert span.facts["gen_ai.usage.output_tokens"] == 2
    first = span.facts["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first, float)
    assert first > 0


async def test_each_attempt_has_a_span_and_failed_ones_their_error() -> None:
    failed, answered = await trace(refuse, answer)
    assert (failed.problem, failed.facts["error.type"]) == ("UpstreamUnclear", "UpstreamUnclear")
    assert failed.facts["gateway.provider"] == "provider-0"
    assert answered.problem is None
    assert answered.facts["gateway.provider"] == "provider-1"


async def test_stream_that_breaks_off_fails_with_estimated_tokens() -> None:
    (span,) = await trace(cut, stream=True)
    assert span.problem is not None
    assert span.facts["error.type"] == span.problem
    assert span.facts["gateway.outcome"] == "failed"
    assert span.facts["gateway.usage_estimated"] is True


async def test_span_of_a_client_that_leaves_ends_without_an_error_of_the_provider() -> None:
    async def begin(reply: Reply, _: Received) -> None:
        await reply.begin()
        await reply.chunk(make_chat_chunks("Hello")[1])
        await asyncio.Event().wait()

    tracer = FakeTracer()
    async with LlmProvider(begin) as provider:
        gateway = LlmGateway(provider, tracer=tracer)
        await asyncio.wait_for(gateway.leave_after(lambda got: b"Hello" in got, stream=True), 5)
        await wait_for(lambda: provider.open_connections == 0)
        await gateway.close()
        await gateway.api_parts.llm_providers.close()
    (span,) = tracer.named("chat chat-1")
    assert span.is_ended
    assert span.facts["gateway.outcome"] == "client_gone"
    assert "error.type" not in span.facts


async def test_span_of_a_client_that_leaves_before_an_answer_ends() -> None:
    asked = asyncio.Event()

    async def ponder(_: Reply, __: Received) -> None:
        asked.set()
        await asyncio.Event().wait()

    tracer = FakeTracer()
    async with LlmProvider(ponder) as provider:
        gateway = LlmGateway(provider, tracer=tracer)
        await asyncio.wait_for(gateway.leave_after(lambda _: asked.is_set()), 5)
        await wait_for(lambda: provider.open_connections == 0)
        await gateway.close()
        await gateway.api_parts.llm_providers.close()
    (span,) = tracer.named("chat chat-1")
    assert span.is_ended
    assert (span.problem, span.facts["gateway.outcome"]) == (None, "abandoned")
