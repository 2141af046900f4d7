"""Serves the port that clients reach until a signal, and drains it then; and the health port.

Used by `__main__`.
"""

import asyncio
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway_apiserver.middleware.clients import ConnectionBounds
from gateway_apiserver.middleware.connections import ConnectionTable
from gateway_apiserver.middleware.drain import Drain
from gateway_apiserver.middleware.protocol import Protocol

DRAIN_SECONDS = 15
"""How long requests under way have after SIGTERM: a create may take 10 s to be known."""
_HEALTH_BOUNDS = ConnectionBounds(connections=200, per_address=200)
_OTHER_DESCRIPTORS = 512
"""What a process opens beside client connections: stores, Redis, the Kubernetes API, files."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """A server that returns after a signal; uvicorn's own would raise the signal anew.

    After SIGTERM it first lingers; a second signal, like SIGINT, ends that.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, linger_seconds: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._linger_seconds = linger_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins the drain, and ends it after the time to linger."""
        lingers = sig == signal.SIGTERM and not self._drain.begun
        self._drain.begun = True
        if lingers and self._linger_seconds > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(self._linger_seconds, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            # what has ended is stored after this: SIGTERM that comes again must not cut it short
            loop.remove_signal_handler(signal.SIGINT)


class _HealthServer(uvicorn.Server):
    """A server that leaves signals to the one of the client port."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    drain: Drain,
    linger_seconds: float,
    table: ConnectionTable | None = None,
) -> None:
    """Serves until SIGTERM and so many seconds more, or until SIGINT.

    SystemExit if the address cannot be listened on.
    """
    # an empty table is false
    connections = ConnectionTable(ConnectionBounds()) if table is None else table
    _raise_descriptor_limit(connections.bounds.connections + _OTHER_DESCRIPTORS)
    config = _configure(drain.wrap(app), host, port, connections, DRAIN_SECONDS)
    await _Server(config, drain, linger_seconds).serve()


@asynccontextmanager
async def serve_health(app: ASGIApp, host: str, port: int) -> AsyncIterator[None]:
    """Serves the health port while the context is entered.

    SystemExit if the address cannot be listened on. A failure of the server cancels the context:
    a process without probes must end.
    """
    config = _configure(app, host, port, ConnectionTable(_HEALTH_BOUNDS), drain_seconds=1)
    server = _HealthServer(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = True


def _configure(
    app: ASGIApp, host: str, port: int, table: ConnectionTable, drain_seconds: int
) -> uvicorn.Config:
    # uvicorn calls what it is given as a class
    protocol: Any = partial(Protocol, table=table)
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(table.bounds.idle_seconds),
        timeout_graceful_shutdown=drain_seconds,
    )


def _raise_descriptor_limit(needed: int) -> None:
    """Lets the process open as many descriptors as its bounds need, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
