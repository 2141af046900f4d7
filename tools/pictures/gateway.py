"""A local run for tools: in a folder of its own, on free ports, ended with all it wrote."""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gateway_cli.local.config import (
    LOOPBACK,
    PORT_NAMES,
    LocalConfig,
    LocalRunError,
    Ports,
    check_ports,
)
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]
_PORT_BASE = 22_000
_BLOCKS = 500


@asynccontextmanager
async def run_gateway(
    extra_env: Mapping[str, Mapping[str, str]] | None = None,
) -> AsyncIterator[LocalRun]:
    """Yield all processes while the body runs; `extra_env` is further environment by process."""
    with tempfile.TemporaryDirectory(prefix="gateway-pictures-") as name:
        config = LocalConfig(
            root=ROOT,
            directory=Path(name),
            ports=choose_ports(),
            sync_to_disk=False,
            extra_env=extra_env or {},
        )
        run = LocalRun(config, Reporter.quiet())
        try:
            await run.start()
            yield run
        finally:
            await run.stop()


def choose_ports() -> Ports:
    """Return the usual ports, or where one of them has a listener a block of free ones.

    Raises:
        LocalRunError: none is free.
    """
    step = len(PORT_NAMES) + 3
    for base in (None, *range(_PORT_BASE, _PORT_BASE + _BLOCKS * step, step)):
        ports = Ports() if base is None else Ports.block(base)
        try:
            check_ports(ports, PORT_NAMES)
        except LocalRunError:
            continue
        return ports
    raise LocalRunError("no block of ports is free")


@asynccontextmanager
async def receive_callbacks(
    failing: float = 0, delivered: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """Open a receiver of callbacks at the address; it refuses that share of them at first.

    `delivered` is set by each callback.
    """
    draw = random.Random(11)  # noqa: S311 - sample data

    async def accept(_: web.Request) -> web.Response:
        if delivered:
            delivered.set()
        return web.Response(status=503 if draw.random() < failing else 204)

    app = web.Application()
    app.router.add_post("/hooks/videos", accept)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}/hooks/videos"
    finally:
        await runner.cleanup()
