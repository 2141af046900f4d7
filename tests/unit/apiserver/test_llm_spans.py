"""Spans of LLM calls: attributes of the GenAI conventions, and no content."""

from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from tests.fakes.tracing import FakeSpan, FakeTracer
from tests.servers.world import wait_for
from tests.unit.apiserver.llm_gateway import (
    Script,
    answer,
    break_off,
    fail_with,
    hang,
    say_and_hang,
    serve,
    serve_each,
    stream,
)

PROMPT = "a secret prompt"


async def trace(*scripts: Script, **fields: Any) -> list[FakeSpan]:
    """The spans of the attempts of one call, at one provider for each script."""
    tracer = FakeTracer()
    async with serve_each(*scripts, tracer=tracer) as (gateway, *_):
        await gateway.chat(messages=[{"role": "user", "content": PROMPT}], **fields)
        await gateway.close()
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
    failed, answered = await trace(fail_with(500, PROMPT), answer)
    assert (failed.problem, failed.facts["error.type"]) == ("UpstreamUnclear", "UpstreamUnclear")
    assert failed.facts["gateway.provider"] == "provider-0"
    assert answered.problem is None
    assert answered.facts["gateway.provider"] == "provider-1"


async def test_stream_that_breaks_off_fails_with_estimated_tokens() -> None:
    (span,) = await trace(break_off, stream=True)
    assert span.problem is not None
    assert span.facts["error.type"] == span.problem
    assert span.facts["gateway.outcome"] == "failed"
    assert span.facts["gateway.usage_estimated"] is True


@pytest.mark.parametrize(
    ("script", "outcome"), [(say_and_hang, "client_gone"), (hang, "abandoned")]
)
async def test_span_of_a_client_that_leaves_ends_without_an_error_of_the_provider(
    script: Script, outcome: str
) -> None:
    tracer = FakeTracer()
    async with serve(script, tracer=tracer) as (gateway, provider):
        streams = script is say_and_hang
        is_time = (lambda got: b"Hello" in got) if streams else (lambda _: provider.received)
        await gateway.leave_after(is_time, stream=streams)
        await wait_for(lambda: provider.open_connections == 0)
        await gateway.close()
    (span,) = tracer.named("chat chat-1")
    assert span.is_ended
    assert (span.problem, span.facts["gateway.outcome"]) == (None, outcome)
    assert "error.type" not in span.facts
