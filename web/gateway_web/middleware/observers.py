"""Observers of each request: its line in the access log and its span.

Both have the template of the route and never the path or the query: a path may be an address that
grants access, and a query may contain a key (contract §0.10).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import structlog
from starlette.types import Scope

from gateway_core.observability.logs import LineWriter
from gateway_core.observability.tracing import (
    NO_SPAN,
    NO_TRACER,
    Span,
    SpanKind,
    TraceContext,
    Tracer,
    parse_traceparent,
)
from gateway_web.context import RequestContext
from gateway_web.settings import ProcessSettings

_log = structlog.get_logger(__name__)

LOGGER = __name__
_MOST_CLIENT_ID = 512
_CREDENTIAL = re.compile(r"(sk|mk)-[a-z2-7]{8}_|whsec_|gw(at|rt|cs)_|bearer", re.IGNORECASE)
_QUIET = frozenset({"operations_health"})
"""What load balancers ask every few seconds."""

Which = Literal["all", "notable", "off"]
Write = Callable[[str, Mapping[str, Any]], None]


def _write_by_structlog(event: str, facts: Mapping[str, Any]) -> None:
    _log.info(event, **facts)


class AccessLog:
    """Writes lines by `write`: `all`, `notable` ones (no GET that went well), or none (`off`)."""

    def __init__(self, which: Which = "all", write: Write = _write_by_structlog) -> None:
        self._which = which
        self._write = write

    def note(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        """Log one answered request."""
        if self._which == "off":
            return
        if 0 < status < 400 and (
            context.route in _QUIET
            or (self._which == "notable" and scope["method"] in ("GET", "HEAD"))
        ):
            return
        facts: dict[str, Any] = {
            "request_id": context.request_id,
            "method": scope["method"],
            "route": context.template or "other",
            "status": status,
            "duration_ms": round(seconds * 1000, 1),
        }
        if context.account is not None:
            facts["account"] = context.account
        if context.task is not None:
            facts["task"] = context.task
        if context.task_uid is not None:
            facts["task_uid"] = context.task_uid
        client_id = _read_client_id(scope)
        if client_id is not None:
            facts["client_request_id"] = client_id
        trace = None if context.span is NO_SPAN else context.span.context
        if trace is not None:
            facts["trace_id"] = trace.trace_id
        if context.content is not None:
            facts.update(context.content)
        self._write("answered", facts)


@contextmanager
def open_access_log(settings: ProcessSettings) -> Iterator[AccessLog]:
    """Yield the access log, as the settings choose it."""
    if settings.log_level in ("warning", "error"):
        yield AccessLog("off")
        return
    lines = LineWriter(settings.log_format, LOGGER)
    try:
        yield AccessLog(settings.access_log, lines.write)
    finally:
        lines.flush()


def _read_client_id(scope: Scope) -> str | None:
    """`X-Client-Request-Id` where it is visible ASCII of at most 512 characters (§0.8).

    One that looks like a credential was sent by mistake and is not logged.
    """
    for name, value in scope["headers"]:
        if name == b"x-client-request-id":
            text: str = value.decode("latin-1")
            fits = len(text) <= _MOST_CLIENT_ID and all("!" <= char <= "~" for char in text)
            return text if fits and not _CREDENTIAL.search(text) else None
    return None


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
        """Return the span of a request."""
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
