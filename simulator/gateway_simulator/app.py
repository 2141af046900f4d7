"""The simulator as one ASGI application; `server` runs it, the unit tests call it in process."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_simulator.answers import Answer
from gateway_simulator.control import ControlRoutes
from gateway_simulator.history import History
from gateway_simulator.journal import Journal
from gateway_simulator.ledger import Ledger
from gateway_simulator.moderationroutes import ModerationRoutes
from gateway_simulator.provider import Provider
from gateway_simulator.routes import ProviderRoutes
from gateway_simulator.settings import Settings


class _RequestCount:
    """Counts the /v1 requests under way, so that a test can check a caller's concurrency."""

    def __init__(self, app: ASGIApp, history: History) -> None:
        self._app = app
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
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

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        ledger.close()

    return Starlette(
        routes=[
            Route("/healthz", _show_health),
            *ProviderRoutes(provider, settings.token.get_secret_value()).routes(),
            *ModerationRoutes(provider, settings.token.get_secret_value()).routes(),
            *ControlRoutes(provider).routes(),
        ],
        middleware=[Middleware(_RequestCount, history=provider.history)],
        lifespan=lifespan,
    )
