"""The spans of a task: each step's own, below the request that made the task.

The trace is named in the task's object, so it goes on in whatever process works the task next, and
after any `kill -9`. A task of kubectl's has a trace all the same: its uid names it.
"""

import re

from gateway_core.contract.names import TRACEPARENT_ANNOTATION
from gateway_core.contract.task import GatewayTask
from gateway_core.domain.tracecontext import TraceContext, parse_traceparent
from gateway_core.ports.tracing import NO_SPAN, NO_TRACER, Span, SpanKind, Tracer

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
            facts={
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
