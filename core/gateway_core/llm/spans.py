"""Spans of calls to providers, by OpenTelemetry's semantic conventions for generative AI.

One span for each attempt, below that of the request. It has models, tokens and times, and neither
prompts nor answers. While tracing is off, or the request is not traced, each function is one test.
"""

from gateway_core.llm.formats.calls import Format, LlmCall, TokenUsage
from gateway_core.llm.formats.exchange import Exchange
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.observability.tracing import NO_SPAN, AttributeValue, Span, SpanKind
from gateway_core.providers.upstream import UpstreamError


def begin_attempt(
    parent: Span, exchange: Exchange, provider: str, upstream: LlmUpstream, upstream_model: str
) -> Span:
    """Return the span of an attempt at a provider."""
    if parent is NO_SPAN:
        return NO_SPAN
    call = exchange.call
    operation = "generate_content" if exchange.upstream is Format.GOOGLE else "chat"
    span = parent.child(f"{operation} {call.model_id}", kind=SpanKind.CLIENT)
    host, port = upstream.server
    span.set_attributes(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "gcp.gemini" if upstream.dialect == "google" else "openai",
            "gen_ai.request.model": call.model_id,
            # the answer's own name of the model is replaced unread
            "gen_ai.response.model": upstream_model,
            "gateway.provider": provider,
            "server.address": host,
            "server.port": port,
            **_describe_request(call),
        }
    )
    return span


def fail_attempt(span: Span, error: BaseException) -> None:
    """End the span of an attempt without an answer."""
    if span is NO_SPAN:
        return
    if isinstance(error, UpstreamError):
        note_error(span, error)
    else:
        # its client has left, or gives it no more time
        span.set_attributes({"gateway.outcome": "abandoned"})
    span.end()


def note_error(span: Span, error: BaseException) -> None:
    """Mark the span as failed, by the type of the error alone: its text may repeat the prompt."""
    if span is not NO_SPAN:
        name = type(error).__name__
        span.set_attributes({"error.type": name})
        span.fail(name)


def note_reasons(span: Span, reasons: list[str]) -> None:
    """Note why the choices of an answer ended."""
    if span is not NO_SPAN and reasons:
        span.set_attributes({"gen_ai.response.finish_reasons": reasons})


def end_attempt(span: Span, outcome: str, times: CallTimes, used: TokenUsage) -> None:
    """End the span of an attempt that was answered; `outcome` as in `gateway_llm_calls_total`."""
    if span is NO_SPAN:
        return
    facts: dict[str, AttributeValue] = {
        "gateway.outcome": outcome,
        "gen_ai.usage.input_tokens": used.input,
        "gen_ai.usage.output_tokens": used.output,
        "gen_ai.usage.cache_read.input_tokens": used.cached,
        "gen_ai.usage.reasoning.output_tokens": used.reasoning,
        "gateway.usage_estimated": used.estimated,
    }
    if times.first:
        facts["gen_ai.response.time_to_first_chunk"] = round(times.first - times.sent, 6)
    span.set_attributes(facts)
    span.end()


def _describe_request(call: LlmCall) -> dict[str, AttributeValue]:
    facts: dict[str, AttributeValue] = {"gen_ai.request.stream": call.stream}
    if call.max_output is not None:
        facts["gen_ai.request.max_tokens"] = call.max_output
    if call.choices != 1:
        facts["gen_ai.request.choice.count"] = call.choices
    return facts
