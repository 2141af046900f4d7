"""Spans of a task, and calls to providers as they are counted, timed and traced.

The task's object names its trace, so the trace continues in the process that works the task next. A
task made with kubectl gets a trace named by its uid.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gateway_core.api.ids import TRACEPARENT_ANNOTATION
from gateway_core.api.task import GatewayTask
from gateway_core.observability.tracing import (
    NO_SPAN,
    NO_TRACER,
    Span,
    SpanKind,
    TraceContext,
    Tracer,
    parse_traceparent,
)
from gateway_core.providers.upstream import (
    OutputRejected,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_operator.metrics import Metrics

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


class TaskTraces:
    """Begins spans. `tells_providers` is whether calls that start jobs carry `traceparent`."""

    def __init__(self, tracer: Tracer = NO_TRACER, *, tells_providers: bool = False) -> None:
        self._tracer = tracer
        self._tells_providers = tells_providers

    def begin(self, task: GatewayTask, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """The span of a step of the task."""
        if not self._tracer.is_on:
            return NO_SPAN
        parent = find_context(task)
        own_trace = task.metadata.uid.replace("-", "")
        return self._tracer.start(
            name,
            kind=kind,
            parent=parent,
            trace_id=own_trace if parent is None and _TRACE_ID.fullmatch(own_trace) else None,
            attributes={
                "gateway.task": task.metadata.name,
                "gateway.account": task.spec.request.account_name,
            },
        )

    def name_for_provider(self, span: Span) -> str | None:
        """What a provider is told of the span; None unless an admin wants it told."""
        context = span.context if self._tells_providers else None
        return None if context is None else str(context)


def find_context(task: GatewayTask) -> TraceContext | None:
    """The trace that the task's object names."""
    return parse_traceparent(task.metadata.annotations.get(TRACEPARENT_ANNOTATION))


_OUTCOMES: dict[type[UpstreamError], str] = {
    UpstreamRejected: "rejected",
    OutputRejected: "rejected",
    UpstreamBusy: "busy",
    UpstreamDenied: "denied",
    UpstreamUnclear: "unclear",
    UpstreamGone: "gone",
}


class UpstreamCalls:
    """Goes around each call."""

    def __init__(self, metrics: Metrics, traces: TaskTraces) -> None:
        self._metrics = metrics
        self._traces = traces

    @contextmanager
    def watch(self, task: GatewayTask, provider: str, call: str) -> Iterator[Span]:
        """Around one call, e.g. `submit`; the span is its own."""
        span = self._traces.begin(task, call, kind=SpanKind.CLIENT)
        span.set_attributes({"gateway.provider": provider})
        with span, self.time(provider, call):
            yield span

    @contextmanager
    def time(self, provider: str, call: str) -> Iterator[None]:
        """The same without a span."""
        outcome, began = "cut_short", time.perf_counter()
        try:
            yield
            outcome = "ok"
        except UpstreamError as error:
            outcome = name_outcome(error)
            raise
        finally:
            self._metrics.count_call(provider, call, outcome, time.perf_counter() - began)


def name_outcome(error: UpstreamError) -> str:
    """The word for how a call failed."""
    return next((_OUTCOMES[base] for base in type(error).__mro__ if base in _OUTCOMES), "unclear")
