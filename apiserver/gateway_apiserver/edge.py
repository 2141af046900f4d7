"""The outermost layer of every HTTP process: request id, errors as answers, log line, count.

Pure ASGI. Whatever happens inside, a client gets one answer in its dialect with an `X-Request-Id`
that is fresh and never copied from it (contract §0.8).
"""

import logging
import time
from typing import Protocol

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway_apiserver.answers import send_answer
from gateway_apiserver.errors import render_error, to_gateway_error
from gateway_apiserver.surfaces import choose_dialect
from gateway_apiserver.trace import SCOPE_KEY, Trace
from gateway_core.contract.errors import Internal
from gateway_core.contract.ids import mint_request_id

_log = structlog.get_logger(__name__)

_MOST_CLIENT_ID = 512
_CLIENT_GONE = 499
"""The status that is logged and counted where the client left before it was answered."""
_levels = logging.getLogger(__name__)


class RequestCounter(Protocol):
    """What the edge tells of each answer."""

    def count_request(self, route: str, status: int) -> None:
        """Counts one answer."""
        ...


class Edge:
    """Wraps an ASGI application that raises `GatewayError` for what it refuses."""

    def __init__(self, app: ASGIApp, counter: RequestCounter | None = None) -> None:
        self._app = app
        self._counter = counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; other kinds of connection are let go."""
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        trace = Trace(mint_request_id())
        scope[SCOPE_KEY] = trace
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                marks = (b"x-request-id", trace.request_id.encode())
                message["headers"] = [*message["headers"], *trace.headers, marks]
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except ClientDisconnect:
            # nobody is there to be answered
            status = _CLIENT_GONE
        except Exception as error:
            known = to_gateway_error(error, trace.request_id)
            if isinstance(known, Internal) or status:
                _log.exception("request failed", request_id=trace.request_id)
            if not status:
                answer = render_error(known, choose_dialect(scope))
                await send_answer(send_marked, answer, with_body=scope["method"] != "HEAD")
        finally:
            if self._counter is not None:
                self._counter.count_request(trace.route, status)
            _log_answer(scope, trace, status, time.perf_counter() - began)


def _log_answer(scope: Scope, trace: Trace, status: int, seconds: float) -> None:
    # Polls outnumber everything else by far, and one that went well says nothing.
    quiet = status < 400 and scope["method"] in ("GET", "HEAD")
    if quiet and not _levels.isEnabledFor(logging.DEBUG):
        return
    write = _log.debug if quiet else _log.info
    facts = {"account": trace.account, "task": trace.task, "client_request_id": _client_id(scope)}
    write(
        "answered",
        request_id=trace.request_id,
        method=scope["method"],
        path=scope["path"],
        status=status,
        ms=round(seconds * 1000, 1),
        **{name: value for name, value in facts.items() if value},
    )


def _client_id(scope: Scope) -> str | None:
    """`X-Client-Request-Id` where it is visible ASCII of at most 512 characters (§0.8)."""
    for name, value in scope["headers"]:
        if name == b"x-client-request-id":
            text: str = value.decode("latin-1")
            fits = len(text) <= _MOST_CLIENT_ID and all("!" <= char <= "~" for char in text)
            return text if fits else None
    return None
