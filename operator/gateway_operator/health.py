"""The operator's health port: /healthz (alive), /readyz (working) and /metrics."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest

from gateway_operator.metrics import Metrics


async def start_health(
    host: str, port: int, *, ready: Callable[[], str | None], metrics: Metrics
) -> web.AppRunner:
    """Serves until the runner is cleaned up. `ready` gives None, or what is still missing."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        if missing is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=missing + "\n")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), content_type="text/plain")

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", show_metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
