"""The operator's inner port: /healthz (alive), /readyz (working), /metrics, and /notices/...

Notices come through the API server process, which throttles floods; their signature is verified
here all the same, since any pod of the cluster may reach this port.
"""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway_core.providers.notices import ROOT, Notice, NoticeSigner
from gateway_operator.metrics import Metrics


async def start_health(
    host: str,
    port: int,
    *,
    ready: Callable[[], str | None],
    metrics: Metrics,
    signer: NoticeSigner,
    take_notice: Callable[[Notice], None],
) -> web.AppRunner:
    """Serve until the runner is cleaned up. `ready` returns None, or what is still missing."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        if missing is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=missing + "\n")

    async def show_metrics(_: web.Request) -> web.Response:
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def hear_notice(request: web.Request) -> web.Response:
        notice = signer.verify(request.path)
        if notice is None:
            return web.Response(status=404)
        take_notice(notice)
        return web.Response(status=204)

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", show_metrics),
            web.post(ROOT + "{rest:.+}", hear_notice),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
