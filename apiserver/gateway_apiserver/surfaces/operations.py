"""Operational routes of the public port: liveness, readiness and the OpenAPI document."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from gateway_apiserver.context import get_context
from gateway_core.api.errors import Unavailable


def build_operations_router(
    is_ready: Callable[[], bool], describe: Callable[[], dict[str, Any]]
) -> APIRouter:
    """The router; `describe` makes the document.

    Load balancers that can only probe the traffic port use the first two. Kubernetes' probes and
    Prometheus use the health port (`health`).
    """
    router = APIRouter()

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

    @router.get("/openapi.json")
    async def show_document(request: Request) -> Response:
        """What can be called now."""
        get_context(request.scope).route = "operations_openapi"
        return Response(orjson.dumps(describe()), media_type="application/json")

    return router
