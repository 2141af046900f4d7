"""Calls to providers as they are counted, timed and traced, and the spans of a task.

The task's object names its trace, so the trace continues in the process that works the task next. A
task made with kubectl gets a trace that is named by its uid.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
from gateway_core.providers.notices import Notice
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import (
    OutputRejected,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_operator.metrics import Metrics

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_OUTCOMES: dict[type[UpstreamError], str] = {
    UpstreamRejected: "rejected",
    OutputRejected: "rejected",
    UpstreamBusy: "busy",
    UpstreamDenied: "denied",
    UpstreamUnclear: "unclear",
    UpstreamGone: "gone",
}


class TaskTraces:
    """Spans of tasks. `tells_providers` is whether calls that start jobs carry `traceparent`."""

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
        """`traceparent` for a provider; None unless an admin wants providers to have it."""
        context = span.context if self._tells_providers else None
        return None if context is None else str(context)


@dataclass(eq=False)
class ProviderCalls:
    """The providers with jobs, and what surrounds each call to any provider.

    `locate_notices` makes the URL that a task's provider may call, None where push is off.
    """

    providers: Providers[Upstream]
    metrics: Metrics
    traces: TaskTraces
    locate_notices: Callable[[Notice], str | None]

    async def find(self, provider: str) -> Upstream | None:
        """The provider's adapter; None if it is unusable now. RecordUnavailable."""
        return await self.providers.find(provider)

    def notify_url(self, task: GatewayTask) -> str | None:
        """The URL that the task's provider may call, None where push is off."""
        return self.locate_notices(Notice(task.metadata.name, task.metadata.uid))

    @contextmanager
    def watch(self, task: GatewayTask, provider: str, call: str) -> Iterator[Span]:
        """Count, time and trace one call, e.g. `submit`, in a span of its own."""
        span = self.traces.begin(task, call, kind=SpanKind.CLIENT)
        span.set_attributes({"gateway.provider": provider})
        with span, self.time(provider, call):
            yield span

    @contextmanager
    def time(self, provider: str, call: str) -> Iterator[None]:
        """Count and time one call."""
        outcome, began = "cut_short", time.perf_counter()
        try:
            yield
            outcome = "ok"
        except UpstreamError as error:
            outcome = name_outcome(error)
            raise
        finally:
            self.metrics.count_call(provider, call, outcome, time.perf_counter() - began)


def name_outcome(error: UpstreamError) -> str:
    """The metric label of a failed call."""
    return next((_OUTCOMES[base] for base in type(error).__mro__ if base in _OUTCOMES), "unclear")


def find_context(task: GatewayTask) -> TraceContext | None:
    """The trace that the task's object names."""
    return parse_traceparent(task.metadata.annotations.get(TRACEPARENT_ANNOTATION))
