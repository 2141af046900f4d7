"""Operational routes of the public port: liveness, readiness and the OpenAPI document."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from gateway_apiserver.catalog import CatalogView
from gateway_apiserver.context import get_context
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.surfaces.public_responses import PublicResponse
from gateway_core.api.errors import Unavailable
from gateway_core.providers.catalog import Catalog

DOCUMENT_PATH = "/openapi.json"


def build_operations_router(
    is_ready: Callable[[], bool],
    catalog: CatalogView,
    describe: Callable[[Catalog], dict[str, Any]],
    downloads: Downloads,
) -> APIRouter:
    """The router; `describe` makes the document of a catalog.

    Load balancers that can only probe the traffic port use the first two. Kubernetes' probes and
    Prometheus use the health port (`health`).
    """
    router = APIRouter()
    known: tuple[Catalog, bytes] | None = None

    @router.get("/healthz")
    async def show_health(request: Request) -> dict[str, str]:
        """That the process is alive."""
        get_context(request.scope).route = "operations_health"
        return {"status": "ok"}

    @router.get("/readyz")
    async def show_readiness(request: Request) -> dict[str, str]:
        """Whether requests should be sent here."""
        get_context(request.scope).route = "operations_health"
        if not is_ready():
            raise Unavailable("The gateway is starting or leaving.", retry_after=1)
        return {"status": "ok"}

    @router.get(DOCUMENT_PATH)
    async def show_document(request: Request) -> Response:
        """What can be called now."""
        nonlocal known
        get_context(request.scope).route = "operations_openapi"
        current = catalog.current
        if known is None or known[0] is not current:
            # 30 ms, and anybody may ask
            known = current, orjson.dumps(describe(current))
        return PublicResponse(known[1], downloads, DOCUMENT_PATH)

    return router
