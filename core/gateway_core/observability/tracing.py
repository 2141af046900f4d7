"""Traces: OpenTelemetry spans of one call or task across processes, named by W3C Trace Context."""

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opentelemetry import trace
from opentelemetry.trace import SpanKind as SpanKind
from opentelemetry.trace import Status, StatusCode

if TYPE_CHECKING:
    from gateway_core.observability.otlp import Provider

CLOSE_SECONDS = 3.0
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

AttributeValue = str | int | float | bool | list[str]
Attributes = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids of a span and of its trace in hex, and whether the trace is sampled."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Return the context of a `traceparent` header or annotation.

    Return None where it is not well formed.
    """
    match = _SHAPE.fullmatch(text or "")
    # versions after 00 may append fields
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    if set(match[2]) == {"0"} or set(match[3]) == {"0"}:
        return None
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))


class Span:
    """OpenTelemetry span that starts its own children. NO_SPAN records nothing.

    As a context manager it ends with its block, as failed where that raises.
    """

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> TraceContext | None:
        """What other processes name as their parent; None where nothing is traced."""
        own = self._span.get_span_context()
        if not own.is_valid:
            return None
        return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)

    def child(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> "Span":
        """Start a span below this one."""
        if self is NO_SPAN:
            return self
        around = trace.set_span_in_context(self._span)
        return Span(self._tracer, self._tracer.start_span(name, around, kind))

    def update_name(self, name: str) -> None:
        """Set the name, where it was not known at the start."""
        self._span.update_name(name)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(dict(attributes))

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Add an event as of now."""
        self._span.add_event(name, dict(attributes or {}))

    def fail(self, problem: str) -> None:
        """Mark the span as failed. The text must be clean of secrets."""
        self._span.set_status(Status(StatusCode.ERROR, problem))

    def end(self) -> None:
        """End the span."""
        self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if error is not None:
            # only the type: the text may repeat what a client or a provider has sent
            self.fail(type(error).__name__)
        self.end()


class Tracer:
    """Starts the spans of a process; without a provider tracing is off."""

    def __init__(self, provider: "Provider | None" = None) -> None:
        self.is_on = provider is not None
        self._ids = None if provider is None else provider.ids
        self._tracer = (
            trace.NoOpTracer() if provider is None else provider.get_tracer("modelgateway")
        )

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        link: TraceContext | None = None,
        trace_id: str | None = None,
        attributes: Attributes | None = None,
    ) -> Span:
        """Start a span below `parent`, or at the top of a trace.

        `link` is a related span of another trace. `trace_id` (32 hex digits) names the trace of a
        span without a parent, for processes that start several top spans of one trace.
        """
        if self._ids is None:
            return NO_SPAN
        around = trace.set_span_in_context(
            trace.INVALID_SPAN if parent is None else trace.NonRecordingSpan(_convert(parent))
        )
        links = [] if link is None else [trace.Link(_convert(link))]
        self._ids.trace_id = trace_id
        try:
            span = self._tracer.start_span(
                name, around, kind, attributes=dict(attributes or {}), links=links
            )
        finally:
            self._ids.trace_id = None
        return Span(self._tracer, span)


NO_TRACER = Tracer()
NO_SPAN = Span(trace.NoOpTracer(), trace.INVALID_SPAN)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether the environment names a receiver of traces, and does not switch them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() != "otlp":
        return False
    return any(environment.get(name, "").strip() for name in _ENDPOINTS)


@asynccontextmanager
async def open_tracer(component: str) -> AsyncIterator[Tracer]:
    """Yield the tracer of the process `component`: `api` or `operator`."""
    if not is_wanted(os.environ):
        yield NO_TRACER
        return
    # the SDK with its exporter costs 11 MB and 80 ms: imported only where tracing is on
    from gateway_core.observability.otlp import Provider

    provider = Provider(component)
    try:
        yield Tracer(provider)
    finally:
        await _close(provider)


async def _close(provider: "Provider") -> None:
    """Send what is left, for at most 3 s: an unreachable receiver must not delay the exit."""
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def send() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(sent.set)

    # a daemon thread: the loop's executor would be joined at the exit of the process
    threading.Thread(target=send, daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await sent.wait()


def _convert(context: TraceContext) -> trace.SpanContext:
    return trace.SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(context.sampled)),
    )
