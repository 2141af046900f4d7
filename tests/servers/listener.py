"""An ASGI application behind the gateway's protocol, on a socket of the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from gateway_web.http1.connections import ConnectionTable
from gateway_web.http1.protocol import Protocol


def build_protocol(app: ASGIApp, table: ConnectionTable) -> Protocol:
    config = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    state = uvicorn.Server(config).server_state
    return Protocol(config=config, server_state=state, app_state={}, table=table)


@asynccontextmanager
async def listen(app: ASGIApp, table: ConnectionTable) -> AsyncIterator[int]:
    """Serves `app` on a free port of loopback, which it yields."""
    server = await asyncio.get_running_loop().create_server(
        lambda: build_protocol(app, table), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
