"""Traces through OpenTelemetry's SDK, sent over OTLP by HTTP from a thread of the SDK's.

The SDK reads its own variables: endpoint, headers, certificates, sampler, batches, resource
attributes (`OTEL_*`). A receiver that is away costs spans and nothing else.
"""

import asyncio
import os
import threading
from contextlib import suppress

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace.status import Status, StatusCode

from gateway_core.api.resource import RELEASE
from gateway_core.observability.tracing import Facts, Span, SpanKind, TraceContext

CLOSE_SECONDS = 3.0

_KINDS = {
    SpanKind.INTERNAL: api.SpanKind.INTERNAL,
    SpanKind.SERVER: api.SpanKind.SERVER,
    SpanKind.CLIENT: api.SpanKind.CLIENT,
}


class _Ids(RandomIdGenerator):
    """Random ids, but for the trace that the next span is to begin."""

    wanted: str | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.wanted is None else int(self.wanted, 16)


class OtlpSpan(Span):
    """A span of OpenTelemetry's."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: api.Tracer, span: api.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> TraceContext:
        """See the port."""
        own = self._span.get_span_context()
        return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)

    def child(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """See the port."""
        around = api.set_span_in_context(self._span)
        return OtlpSpan(self._tracer, self._tracer.start_span(name, around, _KINDS[kind]))

    def rename(self, name: str) -> None:
        """See the port."""
        self._span.update_name(name)

    def tell(self, facts: Facts) -> None:
        """See the port."""
        self._span.set_attributes(dict(facts))

    def note(self, event: str, facts: Facts | None = None) -> None:
        """See the port."""
        self._span.add_event(event, dict(facts or {}))

    def fail(self, problem: str) -> None:
        """See the port."""
        self._span.set_status(Status(StatusCode.ERROR, problem))

    def end(self) -> None:
        """See the port."""
        self._span.end()


class OtlpTracer:
    """One process's tracer; see the port."""

    is_on = True

    def __init__(self, component: str) -> None:
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=Resource.create(_describe(component)), id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("modelgateway")

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        link: TraceContext | None = None,
        trace_id: str | None = None,
        facts: Facts | None = None,
    ) -> Span:
        """See the port."""
        around = api.set_span_in_context(
            api.INVALID_SPAN if parent is None else api.NonRecordingSpan(_to_span_context(parent))
        )
        links = [] if link is None else [api.Link(_to_span_context(link))]
        self._ids.wanted = trace_id
        try:
            span = self._tracer.start_span(
                name, around, _KINDS[kind], attributes=dict(facts or {}), links=links
            )
        finally:
            self._ids.wanted = None
        return OtlpSpan(self._tracer, span)

    async def close(self) -> None:
        """Sends what is left, for at most 3 s: a receiver that is away must hold up no end."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop may have ended meanwhile
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=send, daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await sent.wait()


def _describe(component: str) -> dict[str, str]:
    """The resource, but for what the environment says of it itself."""
    own = {SERVICE_VERSION: RELEASE}
    named = f"{SERVICE_NAME}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not (named or os.environ.get("OTEL_SERVICE_NAME")):
        own[SERVICE_NAME] = f"model-gateway-{component}"
    return own


def _to_span_context(context: TraceContext) -> api.SpanContext:
    return api.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(context.sampled)),
    )
