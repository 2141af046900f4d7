"""The media host as one ASGI application: signed addresses in, bytes out, memory flat.

It knows neither tasks nor accounts: an address is the permission to read, and cannot be guessed.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_apiserver.context import get_context
from gateway_apiserver.health import HealthApp
from gateway_apiserver.media.store import MediaStore
from gateway_apiserver.media.temporary import TemporaryHost
from gateway_apiserver.middleware.access_log import AccessLog
from gateway_apiserver.middleware.clients import ConnectionBounds
from gateway_apiserver.middleware.connections import ConnectionTable
from gateway_apiserver.middleware.downloads import DownloadBounds, Downloads
from gateway_apiserver.middleware.drain import Drain
from gateway_apiserver.middleware.metrics import ConnectionMetrics
from gateway_apiserver.middleware.requests import Observers, RequestMiddleware
from gateway_apiserver.responses import Response, send_response
from gateway_core.api.errors import MethodNotAllowed, NotFound
from gateway_core.files.addresses import PATH, MediaSigner, TemporaryAddresses
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.objects import DOWNLOAD_CHUNK_BYTES, ObjectStore

_METHODS = ("GET", "HEAD")
_TEMPLATE = "/media/{task_uid}/{index}/{signature}/{name}"
_TYPES = {"mp4": b"video/mp4", "webm": b"video/webm", "mov": b"video/quicktime"}
_UNKNOWN_TYPE = b"application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaParts:
    """What the media host is made of."""

    store: ObjectStore
    signer: MediaSigner
    addresses: TemporaryAddresses
    access: AccessLog = field(default_factory=AccessLog)
    connections: ConnectionTable = field(
        default_factory=lambda: ConnectionTable(ConnectionBounds())
    )
    downloads: DownloadBounds = field(default_factory=DownloadBounds)
    registry: CollectorRegistry | None = None
    """For `/metrics` of the health port; None where metrics are off."""


def create_media_app(parts: MediaParts, clock: Callable[[], float] = CLOCK.time) -> ASGIApp:
    """The media host on these parts; `clock` gives Unix seconds."""
    downloads = Downloads(parts.downloads)
    if parts.registry is not None:
        parts.registry.register(ConnectionMetrics(parts.connections, downloads))
    host = _MediaHost(parts, clock, downloads)
    return RequestMiddleware(host, Observers(parts.access), parts.connections.bounds)


def create_media_health_app(parts: MediaParts, drain: Drain) -> ASGIApp:
    """Probes and metrics of the media host, for a port that clients do not reach."""
    return HealthApp(lambda: not drain.begun, parts.registry)


class _MediaHost:
    def __init__(self, parts: MediaParts, clock: Callable[[], float], downloads: Downloads) -> None:
        self._store = parts.store
        self._media = MediaStore(parts.store, downloads)
        self._temporary = TemporaryHost(parts.store, parts.addresses, self._media, clock)
        self._signer = parts.signer
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(PATH):
            await self._temporary(scope, receive, send)
            return
        if scope["method"] not in _METHODS:
            raise MethodNotAllowed(", ".join(_METHODS))
        context = get_context(scope)
        if path == "/healthz":
            context.route = "operations_health"
            response = Response(200, b'{"status":"ok"}')
            await send_response(send, response, with_body=scope["method"] == "GET")
            return
        item = self._signer.verify(path, self._clock())
        if item is None:
            raise NotFound("Not found.")
        context.route, context.template, context.task_uid = "media", _TEMPLATE, item.task_uid
        size = (await self._media.measure(item.key)).bytes
        kind = _TYPES.get(path.rpartition(".")[2], _UNKNOWN_TYPE)

        def stream(start: int, length: int) -> AsyncGenerator[bytes, None]:
            return self._store.stream(
                item.key, start, length, chunk_bytes=DOWNLOAD_CHUNK_BYTES, read_ahead=False
            )

        tag = f'"{item.task_uid}.{item.index}.{size}"'.encode()
        await self._media.send(scope, receive, send, size, tag, [(b"content-type", kind)], stream)
