"""A tracer that keeps its spans."""

import secrets
from collections.abc import Iterator

from opentelemetry.trace import SpanKind

from gateway_core.observability.tracing import Attributes, Span, TraceContext, Tracer


class FakeSpan(Span):
    """A span, and what it was told."""

    def __init__(
        self,
        tracer: "FakeTracer",
        name: str,
        context: TraceContext,
        parent: TraceContext | None,
        link: TraceContext | None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        self.tracer = tracer
        self.name = name
        self._context = context
        self.parent = parent
        self.link = link
        self.kind = kind
        self.facts: dict[str, object] = {}
        self.events: list[tuple[str, Attributes]] = []
        self.problem: str | None = None
        self.is_ended = False

    @property
    def context(self) -> TraceContext:
        return self._context

    def child(self, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> "FakeSpan":
        return self.tracer.start(name, kind=kind, parent=self._context)

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attributes(self, attributes: Attributes) -> None:
        self.facts.update(attributes)

    def add_event(self, name: str, attributes: Attributes | None = None) -> None:
        self.events.append((name, attributes or {}))

    def fail(self, problem: str) -> None:
        self.problem = problem

    def end(self) -> None:
        assert not self.is_ended, f"{self.name} ends twice"
        self.is_ended = True


class FakeTracer(Tracer):
    """`Tracer` whose spans a test reads."""

    is_on = True

    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: TraceContext | None = None,
        link: TraceContext | None = None,
        trace_id: str | None = None,
        attributes: Attributes | None = None,
    ) -> FakeSpan:
        trace = parent.trace_id if parent else trace_id or secrets.token_hex(16)
        context = TraceContext(trace, secrets.token_hex(8), True)
        span = FakeSpan(self, name, context, parent, link, kind)
        span.facts.update(attributes or {})
        self.spans.append(span)
        return span

    def named(self, name: str) -> Iterator[FakeSpan]:
        return (span for span in self.spans if span.name == name)
