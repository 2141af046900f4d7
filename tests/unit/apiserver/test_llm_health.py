"""What LLM calls add to the health of their providers and models."""

from gateway_core.providers.health import Report
from tests.unit.apiserver.llm_gateway import (
    LlmGateway,
    answer,
    break_off,
    fail_with,
    serve,
    serve_each,
    stream,
)


async def count(gateway: LlmGateway, *statuses: int, streams: bool = False) -> Report:
    """Make a call for each status; what the process would report then."""
    for status in statuses:
        assert (await gateway.chat(stream=streams)).status == status
    return gateway.api_parts.health.sum()


async def test_answers_and_streams_are_timed() -> None:
    async with serve(answer) as (gateway, _):
        total = await count(gateway, 200, 200)
    for figures in (total.providers["provider-0"], total.models["chat-1"]):
        assert (figures.calls, figures.answered, figures.failures, figures.streamed) == (2, 2, 0, 0)
        assert figures.seconds > 0
    async with serve(stream("Hi")) as (gateway, _):
        total = await count(gateway, 200, streams=True)
    figures = total.providers["provider-0"]
    assert figures.streamed == 1
    assert 0 < figures.first_seconds <= figures.seconds


async def test_failed_attempt_is_the_providers_and_not_the_models() -> None:
    async with serve_each(fail_with(500), answer) as (gateway, *_):
        total = await count(gateway, 200)
    counts = [
        (figures.calls, figures.failures)
        for figures in (*total.providers.values(), total.models["chat-1"])
    ]
    assert counts == [(1, 1), (1, 0), (1, 0)]


async def test_call_that_no_provider_answers_is_the_models_failure() -> None:
    async with serve(fail_with(401)) as (gateway, _):
        total = await count(gateway, 502)
    assert total.providers["provider-0"].denials == 1
    assert (total.models["chat-1"].calls, total.models["chat-1"].failures) == (1, 1)


async def test_rejected_input_counts_for_nothing() -> None:
    async with serve(fail_with(400)) as (gateway, _):
        total = await count(gateway, 400)
    assert (total.providers, total.models) == ({}, {})


async def test_stream_that_breaks_off_is_a_failure() -> None:
    async with serve(break_off) as (gateway, _):
        total = await count(gateway, 200, streams=True)
    for figures in (total.providers["provider-0"], total.models["chat-1"]):
        assert (figures.calls, figures.failures, figures.answered) == (1, 1, 0)
