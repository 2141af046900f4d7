"""Operational routes of the public port: liveness, readiness and the OpenAPI document.

Load balancers that can only probe the traffic port use the first two. Kubernetes' probes and
Prometheus use the health port (`health`).
"""

from collections.abc import Callable
from typing import Any

import orjson

from gateway_apiserver.responses import JSON, Response
from gateway_apiserver.routing import Call, RouteTable
from gateway_apiserver.surfaces.public_responses import PublicSender
from gateway_core.api.errors import Unavailable
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.catalog_view import CatalogView

_OK = Response(200, b'{"status":"ok"}', (JSON,))


def add_operational_routes(
    table: RouteTable,
    is_ready: Callable[[], bool],
    catalog: CatalogView,
    describe: Callable[[Catalog], dict[str, Any]],
    sender: PublicSender,
) -> None:
    """Add the routes; `describe` makes the document of a catalog."""
    known: tuple[Catalog, bytes] | None = None

    async def show_health(_: Call) -> Response:
        return _OK

    async def show_readiness(_: Call) -> Response:
        if not is_ready():
            raise Unavailable("The gateway is starting or leaving.", retry_after=1)
        return _OK

    async def show_document(call: Call) -> None:
        nonlocal known
        current = catalog.current
        if known is None or known[0] is not current:
            # takes 30 ms, and anybody may ask
            known = current, orjson.dumps(describe(current))
        await sender.send(call, [known[1]])

    table.add("GET", "/healthz", show_health, "operations_health", has_head=False)
    table.add("GET", "/readyz", show_readiness, "operations_health", has_head=False)
    table.add("GET", "/openapi.json", show_document, "operations_openapi", has_head=False)
