"""The outermost layer of every HTTP process: request id, errors as answers, log line, count, span.

Pure ASGI. A client always gets one response in its dialect, with a fresh `X-Request-Id` that is
never copied from the request (contract §0.8).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from gateway_core.api.errors import GatewayError, Internal, NotFound
from gateway_core.api.ids import mint_request_id
from gateway_web.context import SCOPE_KEY, Drain, RequestContext
from gateway_web.errors import (
    choose_dialect,
    may_be_read_by_any_origin,
    render_error,
    to_gateway_error,
)
from gateway_web.http1.connections import ConnectionBounds, ProxiedClients
from gateway_web.middleware.bodies import BodyMemory, RequestBody
from gateway_web.middleware.observers import NO_SPANS, AccessLog, RequestSpans
from gateway_web.responses import Response, ResponseSender, send_response

_log = structlog.get_logger(__name__)

_ANY_ORIGIN = (b"access-control-allow-origin", b"*")
_CLIENT_GONE = 499
"""The status that is logged and counted where the client left before the end of its answer."""


class RequestCounter(Protocol):
    """Counter of responses."""

    def count_request(
        self, route: str, method: str, status: int, account: str | None, seconds: float
    ) -> None:
        """Counts one answer that took so long."""
        ...


@dataclass(frozen=True, slots=True)
class Observers:
    """The observers of each request: access log, metrics, spans."""

    access: AccessLog
    counter: RequestCounter | None = None
    spans: RequestSpans = NO_SPANS


Renderer = Callable[[Scope, GatewayError], Response]


def render_in_dialect(scope: Scope, error: GatewayError) -> Response:
    """Return the response that reports `error` to the client of `scope`."""
    return render_error(error, choose_dialect(scope))


class RequestMiddleware:
    """Wraps an ASGI application that raises `GatewayError` for what it refuses.

    The application gets a HEAD as a GET, and what it sends of a body is dropped.
    """

    def __init__(
        self,
        app: ASGIApp,
        observers: Observers | None = None,
        bounds: ConnectionBounds | None = None,
        drain: Drain | None = None,
        render: Renderer = render_in_dialect,
        memory: BodyMemory | None = None,
    ) -> None:
        chosen = observers or Observers(AccessLog())
        self._app = app
        self._drain = drain or Drain()
        chosen_bounds = bounds or ConnectionBounds()
        self._clients = ProxiedClients(chosen_bounds) if chosen_bounds.trusted_proxies else None
        self._memory = memory or BodyMemory()
        self._render = render
        self._access, self._counter, self._spans = chosen.access, chosen.counter, chosen.spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; connections that are not HTTP are ignored."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        context = RequestContext(mint_request_id(), self._spans.begin(scope))
        scope[SCOPE_KEY] = context
        if may_be_read_by_any_origin(scope["path"]):
            context.headers.append(_ANY_ORIGIN)
        # so that every log line of this request has it
        bind_contextvars(request_id=context.request_id)
        sender = context.sender = ResponseSender(send, scope, context, self._drain)
        body, holder, served = RequestBody(receive, scope, self._memory), None, scope
        if scope["method"] == "HEAD":
            context.is_head, served = True, {**scope, "method": "GET"}
        try:
            if self._clients is not None:
                holder = self._clients.begin(scope)
            if scope["path"].endswith("\n"):
                # no router gets it: they compare paths by `$`, which lets a newline stand there
                await send_response(sender, self._render(scope, NotFound("Not found.")))
            else:
                await self._app(served, body, sender)
        except ClientDisconnect as error:
            # the client has left: there is no response to send
            sender.status = _CLIENT_GONE
            drop_tracebacks(error)
        except Exception as error:
            known = to_gateway_error(error, context.request_id)
            if isinstance(known, Internal) or sender.status:
                _log.exception("request failed")
            if not sender.status:
                await send_response(sender, self._render(scope, known))
            drop_tracebacks(error)
        finally:
            if holder is not None and self._clients is not None:
                self._clients.end(holder)
            body.close()
            seconds, status = time.perf_counter() - began, sender.status
            if self._counter is not None:
                self._counter.count_request(
                    context.route, scope["method"], status, context.account, seconds
                )
            self._access.note(scope, context, status, seconds)
            self._spans.end(scope, context, status)


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error that was handled, and of those behind it.

    Their frames have the request's body, and with an error that one of them keeps they would be a
    cycle, which is collected late.
    """
    left, seen = [error], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += filter(None, (each.__cause__, each.__context__))
