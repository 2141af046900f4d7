"""Serves the application with uvicorn, and writes its log; used by `__main__`."""

import asyncio
import contextlib
import logging
import sys

import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_simulator.app import create_app
from gateway_simulator.connection import EXTENSION
from gateway_simulator.settings import Settings

GRACE_SECONDS = 1
"""How long a stop waits for answers under way: hanging ones would hold it for ever."""


class _Connection:
    """A request's connection, looked for only when a fault wants it."""

    def __init__(self, server: uvicorn.Server, client: object) -> None:
        self._server = server
        self._client = client

    def write(self, data: bytes) -> None:
        for transport in self._find():
            transport.write(data)

    def close(self) -> None:
        for transport in self._find():
            transport.close()

    def _find(self) -> list[asyncio.Transport]:
        # uvicorn keeps its connections by peer address, which is unique among the open ones.
        return [
            each.transport
            for each in self._server.server_state.connections
            if getattr(each, "client", None) == self._client
        ]


class _Wired:
    """Gives each request of an application its connection; `server` is set before it serves."""

    server: uvicorn.Server

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            connection = _Connection(self.server, scope["client"])
            scope.setdefault("extensions", {})[EXTENSION] = connection
        await self._app(scope, receive, send)


def serve(settings: Settings) -> bool:
    """Serve until a signal; return False when the address cannot be listened on.

    Raise OSError or ValueError when the state directory cannot be used.
    """
    _configure_log(settings)
    wired = _Wired(create_app(settings))
    wired.server = uvicorn.Server(
        uvicorn.Config(
            wired,
            host=settings.host,
            port=settings.port,
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
    )
    # The server stops in good order at a Ctrl-C, then hands it on; a busy address it logs, and
    # exits with a status of its own.
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        wired.server.run()
    return wired.server.started


def _configure_log(settings: Settings) -> None:
    rendering: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper())
