"""The port that clients reach, with its graceful shutdown, and the health port.

The health port serves `/healthz` (alive), `/readyz` (takes requests) and `/metrics`. It has no
authentication, request ids or access log: only the kubelet and Prometheus reach it. Its connections
do not count against the bounds of the public port, so probes are answered while that is flooded.
"""

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import structlog
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_web.context import Drain, Header
from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.http1.protocol import Protocol

_TEXT: Header = (b"content-type", b"text/plain; charset=utf-8")
_EXPOSITION: Header = (b"content-type", CONTENT_TYPE_LATEST.encode())


class HealthApp:
    """A plain ASGI application; without `read_metrics` there is no `/metrics`."""

    def __init__(
        self,
        is_ready: Callable[[], bool],
        read_metrics: Callable[[], Awaitable[bytes]] | None,
    ) -> None:
        self._is_ready = is_ready
        self._read_metrics = read_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request: 200, 503 where the process is not ready, else 404 or 405."""
        status, header, body = await self._answer(scope["path"])
        if scope["method"] not in ("GET", "HEAD"):
            status, header, body = 405, _TEXT, b"only GET and HEAD\n"
        headers = [header, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        shown = b"" if scope["method"] == "HEAD" else body
        await send({"type": "http.response.body", "body": shown})

    async def _answer(self, path: str) -> tuple[int, Header, bytes]:
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            if self._is_ready():
                return 200, _TEXT, b"ok\n"
            return 503, _TEXT, b"starting or leaving\n"
        if path == "/metrics" and self._read_metrics is not None:
            return 200, _EXPOSITION, await self._read_metrics()
        return 404, _TEXT, b"not found\n"


async def expose(registry: CollectorRegistry) -> bytes:
    """Return the metrics of one process."""
    return generate_latest(registry)


DRAIN_SECONDS = 15
"""How long requests under way have after SIGTERM: a create may take 10 s to be known."""
_HEALTH_BOUNDS = ConnectionBounds(connections=200, per_address=200)
_OTHER_DESCRIPTORS = 512
"""What a process opens beside connections for requests: Redis, the Kubernetes API, files."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048

_log = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    """A server that returns after a signal; uvicorn's own would raise the signal anew.

    After SIGTERM it first lingers; a second signal, like SIGINT, ends that.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, linger_seconds: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._linger_seconds = linger_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain, and end it after the time to linger."""
        lingers = sig == signal.SIGTERM and not self._drain.begun
        self._drain.begin()
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
    sockets: list[socket.socket] | None = None,
) -> None:
    """Serves until SIGTERM and so many seconds more, or until SIGINT; on `sockets` if given.

    SystemExit if the address cannot be listened on.
    """
    # an empty table is false
    connections = ConnectionTable(ConnectionBounds()) if table is None else table
    # a streamed answer has a connection to its provider or store beside that of its client
    _raise_descriptor_limit(2 * connections.bounds.connections + _OTHER_DESCRIPTORS)
    config = _configure(app, host, port, connections, DRAIN_SECONDS)
    await _Server(config, drain, linger_seconds).serve(sockets)


def listen_shared(host: str, port: int) -> list[socket.socket]:
    """Listen on a port on which other processes listen too (`SO_REUSEPORT`).

    The kernel spreads new connections over the processes. SystemExit if the address cannot be
    listened on.
    """
    try:
        return [
            socket.create_server(address, family=family, backlog=_BACKLOG, reuse_port=True)
            for family, _, _, _, address in socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        ]
    except OSError as error:
        _log.error("cannot listen", address=f"{host}:{port}", error=str(error))
        raise SystemExit(1) from error


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
