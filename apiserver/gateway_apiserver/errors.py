"""Problems of requests and responses that FastAPI finds."""

from typing import Any, NoReturn

from fastapi import Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError

from gateway_apiserver.surfaces.validation import refuse_parameter
from gateway_core.api.errors import InvalidRequest
from gateway_core.validation import refuse_details
from gateway_web.errors import Dialect, choose_dialect


def refuse_invalid(error: Exception, request: Request) -> InvalidRequest:
    """Return the error of a request that FastAPI found invalid: all problems, or the first one."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    places = [tuple(detail["loc"][1:]) for detail in details]
    if not places[0]:
        return InvalidRequest("The body must be a JSON object.", code="invalid_type")
    if choose_dialect(request.scope) is not Dialect.OPENAI:
        return refuse_details(zip(places, details, strict=True))
    is_query = details[0]["loc"][0] == "query"
    model = _find_model(request.scope["route"], is_query=is_query)
    code = "invalid_value" if is_query else ""
    return refuse_parameter(model, {**details[0], "loc": places[0]}, code=code)


class InvalidResponse(Exception):
    """A response that is not as its operation describes it: a defect of the gateway."""


def hide_response(error: Exception, _: Request) -> NoReturn:
    """Raise InvalidResponse, whose text names places alone: the error's own has the response."""
    assert isinstance(error, ResponseValidationError)
    places = sorted({".".join(map(str, detail["loc"])) for detail in error.errors()})
    raise InvalidResponse(", ".join(places)) from None


def _find_model(route: Any, *, is_query: bool) -> Any:
    """Return the model of a route's query or body."""
    field = route.dependant.query_params[0] if is_query else route.body_field
    return field.field_info.annotation
