"""What is asked of the process and not of the product: health, metrics, the OpenAPI document."""

from collections.abc import Callable, Iterable
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from gateway_apiserver.metrics import CONTENT_TYPE, ApiMetrics
from gateway_apiserver.trace import trace_of
from gateway_core.contract.errors import Unavailable
from gateway_core.ports.caches import Table


def build_operations_router(
    tables: Iterable[Table[Any]],
    metrics: ApiMetrics | None,
    describe: Callable[[], dict[str, Any]],
) -> APIRouter:
    """The router; without `metrics` there is no `/metrics`. `describe` makes the document."""
    router = APIRouter()
    watched = tuple(tables)

    @router.get("/healthz")
    async def show_health(request: Request) -> dict[str, str]:
        """That the process is alive."""
        trace_of(request.scope).route = "health"
        return {"status": "ok"}

    @router.get("/readyz")
    async def show_readiness(request: Request) -> dict[str, str]:
        """Whether every table has been read once."""
        trace_of(request.scope).route = "health"
        if not all(table.synced for table in watched):
            raise Unavailable("The gateway is starting.", retry_after=1)
        return {"status": "ok"}

    @router.get("/openapi.json")
    async def show_document(request: Request) -> Response:
        """What can be called now."""
        trace_of(request.scope).route = "openapi"
        return Response(orjson.dumps(describe()), media_type="application/json")

    if metrics is not None:

        @router.get("/metrics")
        async def show_metrics(request: Request) -> Response:
            """The counters of this process."""
            trace_of(request.scope).route = "metrics"
            return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    return router
