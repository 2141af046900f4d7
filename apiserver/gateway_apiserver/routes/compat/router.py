"""Which handler a path below `/v1` and a method lead to.

Plain ASGI, as the task routes are: no framework between a body of many megabytes and the store.
"""

from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from gateway_apiserver.routes.compat.calls import Call, Endpoint
from gateway_apiserver.trace import trace_of
from gateway_core.contract.errors import MethodNotAllowed, NotFound

ROOT = "/v1"
_UNREAD = f"{ROOT}/uploads"
"""To ask for these finds nothing, as it does for one of them (contract §4.6)."""

Endpoints = Mapping[str, Mapping[str, Endpoint]]
"""Path below `/v1`, such as `files/{file_id}/content`, to method to endpoint; GET serves HEAD."""


class CompatRoutes:
    """The surfaces' endpoints; their paths' first words are theirs alone, others are not taken."""

    def __init__(self, *surfaces: Endpoints) -> None:
        self._endpoints: dict[tuple[str, ...], tuple[str, Mapping[str, Endpoint]]] = {}
        for surface in surfaces:
            for path, methods in surface.items():
                shape = tuple("" if part.startswith("{") else part for part in path.split("/"))
                self._endpoints[shape] = (f"{ROOT}/{path}", methods)
        self._words = {shape[0] for shape in self._endpoints}

    def takes(self, path: str) -> bool:
        """Whether this path is answered here, be it by a 404."""
        parts = path.split("/", 3)
        return len(parts) > 2 and parts[1] == "v1" and parts[2] in self._words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        parts = scope["path"].split("/")[2:]
        template, methods, ids = self._find(parts)
        is_head = scope["method"] == "HEAD"
        endpoint = methods.get("GET" if is_head else scope["method"])
        if endpoint is None:
            if template == _UNREAD and (is_head or scope["method"] == "GET"):
                raise NotFound("Not found.")
            allowed = {*methods, "HEAD"} if "GET" in methods else set(methods)
            raise MethodNotAllowed(", ".join(sorted(allowed)))
        trace = trace_of(scope)
        trace.route, trace.template = endpoint.route, template
        await endpoint.serve(Call(scope, receive, send, trace, ids))

    def _find(self, parts: list[str]) -> tuple[str, Mapping[str, Endpoint], tuple[str, ...]]:
        """The template, its methods, and the ids in the path. NotFound."""
        for shape, (template, methods) in self._endpoints.items():
            if len(shape) == len(parts) and all(
                part if not word else part == word for word, part in zip(shape, parts, strict=True)
            ):
                ids = tuple(part for word, part in zip(shape, parts, strict=True) if not word)
                return template, methods, ids
        raise NotFound("Not found.")
