"""The span of each request, where tracing is on."""

from typing import Literal

from starlette.types import Scope

from gateway_apiserver.context import RequestContext
from gateway_core.observability.tracing import (
    NO_SPAN,
    NO_TRACER,
    Span,
    SpanKind,
    TraceContext,
    Tracer,
    parse_traceparent,
)

ClientTraces = Literal["link", "parent", "ignore"]
"""What a client's own `traceparent` is taken for."""

_PROBES = frozenset({"/healthz", "/readyz"})


class RequestSpans:
    """Begins and ends the spans of requests.

    A client's trace is linked, unless the deployment makes it the parent: a client that sends
    `traceparent` could otherwise decide what is recorded, and write into other clients' traces.
    """

    def __init__(self, tracer: Tracer, client_traces: ClientTraces = "link") -> None:
        self._tracer = tracer
        self._client_traces = client_traces

    def begin(self, scope: Scope) -> Span:
        """The span of a request."""
        if not self._tracer.is_on or scope["path"] in _PROBES:
            return NO_SPAN
        told = None if self._client_traces == "ignore" else _read_context(scope)
        is_parent = self._client_traces == "parent"
        return self._tracer.start(
            scope["method"],
            kind=SpanKind.SERVER,
            parent=told if is_parent else None,
            link=None if is_parent else told,
        )

    def end(self, scope: Scope, context: RequestContext, status: int) -> None:
        """Says what has become of the request, and ends its span."""
        span = context.span
        if span is NO_SPAN:
            return
        route = context.template or "other"
        span.update_name(f"{scope['method']} {route}")
        facts: dict[str, str | int | float | bool] = {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": status,
            "gateway.request_id": context.request_id,
        }
        if context.account is not None:
            facts["gateway.account"] = context.account
        if context.task is not None:
            facts["gateway.task"] = context.task
        span.set_attributes(facts)
        if status >= 500:
            span.fail(f"answered {status}")
        span.end()


NO_SPANS = RequestSpans(NO_TRACER)


def _read_context(scope: Scope) -> TraceContext | None:
    values = [value for name, value in scope["headers"] if name == b"traceparent"]
    return parse_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None
