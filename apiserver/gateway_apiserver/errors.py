"""Errors of the application as responses: one handler for each kind that a framework raises.

`gateway_web.errors` knows the four forms.
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from gateway_apiserver.surfaces.validation import refuse_parameter
from gateway_core.api.errors import GatewayError, Internal, InvalidRequest, MethodNotAllowed
from gateway_core.validation import refuse_details
from gateway_web.context import get_context
from gateway_web.errors import Dialect, choose_dialect, render_error, to_gateway_error
from gateway_web.middleware.requests import drop_tracebacks
from gateway_web.responses import ResponseSender, WholeResponse

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def add_error_handlers(app: FastAPI) -> None:
    """Have the application answer refusals in the dialect of their path.

    A defect of the gateway rises to `RequestMiddleware`, which logs it.
    """
    app.add_exception_handler(GatewayError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(RequestValidationError, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    context, scope = get_context(request.scope), request.scope
    has_begun = isinstance(context.sender, ResponseSender) and context.sender.status
    if context.is_inner or has_begun:
        # a page has asked, or the response has begun
        raise error
    if isinstance(error, HTTPException) and error.status_code == 405:
        known: GatewayError = MethodNotAllowed(", ".join(_find_methods(request)))
    else:
        known = to_known_error(request.scope, error)
    if isinstance(known, Internal):
        raise error
    drop_tracebacks(error)
    return WholeResponse(render_error(known, choose_dialect(scope)))


def to_known_error(scope: Any, error: Exception) -> GatewayError:
    """`error` as one of the tree; problems of a body or query in the form of their dialect."""
    if not isinstance(error, RequestValidationError):
        return to_gateway_error(error, get_context(scope).request_id)
    details = error.errors()
    places = [tuple(detail["loc"][1:]) for detail in details]
    if not places[0]:
        return InvalidRequest("The body must be a JSON object.", code="invalid_type")
    if choose_dialect(scope) is not Dialect.OPENAI:
        return refuse_details(zip(places, details, strict=True))
    is_query = details[0]["loc"][0] == "query"
    model = _find_model(scope["route"], is_query=is_query)
    code = "invalid_value" if is_query else ""
    return refuse_parameter(model, {**details[0], "loc": places[0]}, code=code)


def _find_model(route: Any, *, is_query: bool) -> Any:
    """The model of a route's query or body."""
    field = route.dependant.query_params[0] if is_query else route.body_field
    return field.field_info.annotation


def _find_methods(request: Request) -> list[str]:
    """The methods of a path, sorted."""
    found = {
        method
        for method in _METHODS
        for route in request.app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    }
    return sorted({*found, *(("HEAD",) if "GET" in found else ())})
