"""Whether the process works: a heartbeat through the watch, and the inner port.

The port serves /healthz (alive), /readyz (working), /metrics, /notices/... and /orders. Notices and
orders come from the API process, which throttles floods; their signatures are verified here all the
same, since any pod of the cluster may reach this port.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway_core.callbacks.orders import PATH, SIGNATURE, OrderRefused
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.lineage import end_process
from gateway_core.providers.notices import ROOT, Notice, NoticeSigner
from gateway_operator.metrics import Metrics

_log = structlog.get_logger(__name__)


MOST_ORDER = 16 * 1024
"""Bytes of an order; a notice has none."""
Renew = Callable[[], Awaitable[None]]
MAX_UNHEARD = 3
"""Renewals in a row that the watch does not show."""


@dataclass(eq=False)
class Heartbeat:
    """Renews every `seconds`; ends the process after three renewals in a row without an event.

    Three, so that the watch has time to recover after an outage of the API server.
    """

    renew: Renew
    seconds: float
    _heard_at: float | None = field(default=None, init=False)
    _unheard: int = field(default=0, init=False)

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat was heard; infinite before the first."""
        return float("inf") if self._heard_at is None else time.monotonic() - self._heard_at

    @property
    def is_lost(self) -> bool:
        """True if the watch has shown none of the last three renewals."""
        return self._unheard >= MAX_UNHEARD

    def hear(self) -> None:
        """Note a heartbeat that came through the watch."""
        self._heard_at = time.monotonic()
        self._unheard = 0

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            try:
                await self.renew()
                self._unheard += 1
            except KubernetesError as error:
                self._unheard = 0
                _log.info("heartbeat not renewed", error=str(error))
            await asyncio.sleep(self.seconds)
            # kopf cannot restart one watch, and a watch that hangs raises nothing
            if self.is_lost:
                _log.error(
                    "the watch is dead: heartbeats are renewed and not shown; ending",
                    # then kopf may watch another namespace than the settings name
                    was_ever_up=self._heard_at is not None,
                )
                end_process()
                # the shutdown cancels this loop
                await asyncio.Event().wait()


async def start_health(
    host: str,
    port: int,
    *,
    ready: Callable[[], str | None],
    metrics: Metrics,
    signer: NoticeSigner,
    take_notice: Callable[[Notice], None],
    take_order: Callable[[bytes, str], Awaitable[Mapping[str, Any] | None]],
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

    async def carry_out(request: web.Request) -> web.Response:
        body, signature = await request.read(), request.headers.get(SIGNATURE, "")
        try:
            done = await take_order(body, signature)
        except OrderRefused as refusal:
            return web.json_response({"problem": str(refusal)}, status=refusal.status)
        return web.Response(status=404) if done is None else web.json_response(dict(done))

    app = web.Application(client_max_size=MOST_ORDER)
    app.on_response_prepare.append(_end_doubtful)
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", show_metrics),
            web.post(ROOT + "{rest:.+}", hear_notice),
            web.post(PATH, carry_out),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def _end_doubtful(request: web.Request, response: web.StreamResponse) -> None:
    """Close the connection after a request that aiohttp and a proxy may frame differently.

    aiohttp drops the bytes that it received behind a request with Upgrade.
    """
    coding = request.headers.getall("Transfer-Encoding", ["chunked"])
    if "Upgrade" in request.headers or request.version < (1, 1) or coding != ["chunked"]:
        response.force_close()
