"""The route class of the JSON operations: checks before FastAPI reads the body."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from gateway_apiserver.access import authorize
from gateway_apiserver.document_operations import describe_function
from gateway_apiserver.document_schemas import list_properties
from gateway_apiserver.endpoints import Unlisted
from gateway_apiserver.surfaces.validation import check_query, read_request_body
from gateway_core.admission.admission import Access
from gateway_web.context import get_context


class CheckedRequest(Request):
    """A request whose JSON body was read within its bounds, and parsed."""

    def __init__(self, request: Request, raw: bytes, parsed: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._raw, self._parsed = raw, parsed

    async def body(self) -> bytes:
        """Return the body as it came."""
        return self._raw

    async def json(self) -> Any:
        """Return the body as a value."""
        return self._parsed


class GatewayRoute(APIRoute):
    """A route that checks its caller, then its query and the form of its body.

    The endpoint is marked by `requires`; what follows of that is in the description of the route.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.responses, self.openapi_extra = describe_function(self)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of FastAPI behind the checks."""
        handle = super().get_route_handler()
        access: Access | None = getattr(self.endpoint, "access", None)
        label: str = getattr(self.endpoint, "label", "other")
        reads_query, lists = bool(self.dependant.query_params), _find_lists(self)
        body_field = self.body_field

        async def check_then_handle(request: Request) -> Response:
            scope = request.scope
            context = get_context(scope)
            context.route, context.template = label, self.path_format
            request.state.caller = await authorize(scope, access)
            if reads_query:
                check_query(scope, lists)
            if body_field is not None:
                is_optional = not body_field.field_info.is_required()
                raw, parsed = await read_request_body(request, is_optional=is_optional)
                request = CheckedRequest(request, raw, parsed)
            response = await handle(request)
            response.headers.setdefault("cache-control", "no-store")
            return response

        return check_then_handle


class UnlistedOperation(Unlisted, GatewayRoute):
    """A create of what is not listed."""


def _find_lists(route: APIRoute) -> frozenset[str]:
    """Return the parameters of a route's query that may be repeated."""
    return frozenset(
        name
        for field in route.dependant.query_params
        for name, schema in list_properties(field).items()
        if "array" in (schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ())))
    )
