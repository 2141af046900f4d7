"""What the applications of all HTTP processes share: the outermost middleware, errors as responses.

FastAPI raises its own errors for paths and methods that are not served; here they become the
errors of the gateway, in the form that the process renders them in.
"""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_core.api.errors import GatewayError, Internal, MethodNotAllowed
from gateway_web.context import get_context
from gateway_web.errors import to_gateway_error
from gateway_web.middleware.requests import (
    Renderer,
    RequestMiddleware,
    drop_tracebacks,
    render_in_dialect,
)
from gateway_web.responses import ResponseSender, WholeResponse


def create_application(
    render: Renderer = render_in_dialect, inner: Sequence[Middleware] = (), **options: Any
) -> FastAPI:
    """Return an application without routes; `options` are those of `RequestMiddleware`.

    `inner` are middlewares between that one and the routes.

    Refusals are answered as `render` shows them. A defect of the gateway rises to the middleware,
    which logs it.
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # spans and metrics are our own, in which no path or query stands
        telemetry={"tracing": False, "metrics": False, "logs": False},
        middleware=[Middleware(RequestMiddleware, render=render, **options), *inner],
    )
    add_error_handler(app, GatewayError, translate_error, render)
    add_error_handler(app, HTTPException, translate_error, render)
    return app


def add_error_handler(
    app: FastAPI,
    kind: type[Exception],
    translate: Callable[[Exception, Request], GatewayError],
    render: Renderer = render_in_dialect,
) -> None:
    """Have the application answer errors of this kind as what `translate` makes of them."""

    async def answer(request: Request, error: Exception) -> Response:
        context = get_context(request.scope)
        known = translate(error, request)
        if context.is_inner:
            # a page shows it
            raise known from None
        has_begun = isinstance(context.sender, ResponseSender) and context.sender.status
        if has_begun or isinstance(known, Internal):
            raise error
        drop_tracebacks(error)
        return WholeResponse(render(request.scope, known))

    app.add_exception_handler(kind, answer)


def translate_error(error: Exception, request: Request) -> GatewayError:
    """Return the error that a request gets for one that FastAPI or a route raised."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        return MethodNotAllowed(", ".join(_find_methods(request)))
    return to_gateway_error(error, get_context(request.scope).request_id)


class EndpointRoute(Route):
    """A route to an ASGI application, which gets the sender of the gateway as its `send`.

    Without a `method` it serves all of them.
    """

    def __init__(self, method: str | None, path: str, endpoint: ASGIApp, **options: Any) -> None:
        super().__init__(path, endpoint, methods=None if method is None else [method], **options)
        if method is None:
            self.methods = None
        # not wrapped as a function of a request
        self.app = self._serve
        self._endpoint = endpoint

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, get_context(scope).sender)


def _find_methods(request: Request) -> list[str]:
    """Return the methods of a path, sorted."""
    found = {
        method
        for route in iter_route_contexts(request.app.routes)
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted({*found, *(("HEAD",) if "GET" in found else ())})
