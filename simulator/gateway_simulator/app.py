"""The simulator as one ASGI application, and its server.

`__main__` serves it with uvicorn, the unit tests call it in process.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_simulator.control import ControlRoutes
from gateway_simulator.faults import EXTENSION
from gateway_simulator.history import History
from gateway_simulator.injector import Answer
from gateway_simulator.ledger import Journal, Ledger
from gateway_simulator.llm.routes import LanguageRoutes
from gateway_simulator.moderations import ModerationRoutes
from gateway_simulator.protocol import Protocol
from gateway_simulator.provider import Provider
from gateway_simulator.routes import ProviderRoutes
from gateway_simulator.settings import Settings

GRACE_SECONDS = 1
"""How long a stop waits for answers under way: hanging ones would hold it for ever."""
_COUNTED = ("/v1/", "/v1beta/")


class _RequestCount:
    """Counts the API's requests under way, so that a test can check a caller's concurrency."""

    def __init__(self, app: ASGIApp, history: History) -> None:
        self._app = app
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_COUNTED):
            await self._app(scope, receive, send)
            return
        self._history.begin_request()
        try:
            await self._app(scope, receive, send)
        finally:
            self._history.end_request()


async def _show_health(request: Request) -> Answer:
    return Answer({"status": "ok"})


def create_app(settings: Settings, clock: Callable[[], float] = time.time) -> Starlette:
    """Return the application, its jobs loaded; `clock` gives the time in seconds since the epoch.

    Raise OSError or ValueError when the state directory cannot be used.
    """
    journal = None if settings.state_dir is None else Journal(settings.state_dir)
    ledger = Ledger(clock, journal)
    provider = Provider(ledger, settings.seconds, clock)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        ledger.close()

    return Starlette(
        routes=[
            Route("/healthz", _show_health),
            *ProviderRoutes(provider, settings.token.get_secret_value()).routes(),
            *ModerationRoutes(provider, settings.token.get_secret_value()).routes(),
            *LanguageRoutes(provider, settings.token.get_secret_value()).routes(),
            *ControlRoutes(provider).routes(),
        ],
        middleware=[Middleware(_RequestCount, history=provider.history)],
        lifespan=lifespan,
    )


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
            http=Protocol,
            ws="none",
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
