"""The media host: stored bytes by signed or encrypted address, on an origin of its own.

It knows neither tasks nor accounts: an address is the permission to read, and cannot be guessed.
Temporary files are also put here, with a ticket that is valid for one PUT. A client's media type is
not trusted: only types that no browser executes are passed on, and all temporary files are sent as
attachments (contract §2.5).
"""

import hashlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_apiserver.content import Content, ContentSender, write_disposition
from gateway_core.api.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    RangeNotSatisfiable,
    Unavailable,
)
from gateway_core.files.addresses import PATH, MediaSigner, TemporaryAddresses, Ticket
from gateway_core.kube.clock import CLOCK
from gateway_core.storage.content import stream_content
from gateway_core.storage.limits import (
    MEDIA_SECONDS,
    DownloadBounds,
    Downloads,
    StoreTimeout,
    StreamLimiter,
)
from gateway_core.storage.objects import (
    DOWNLOAD_CHUNK_BYTES,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoredObject,
    StoreUnavailable,
)
from gateway_web.application import EndpointRoute, create_application
from gateway_web.context import Drain, Header, get_context
from gateway_web.http1.connections import ConnectionBounds, ConnectionTable, name_client
from gateway_web.middleware.bodies import read_chunks
from gateway_web.middleware.metrics import ConnectionMetrics
from gateway_web.middleware.observers import AccessLog
from gateway_web.middleware.requests import Observers
from gateway_web.responses import Response, send_empty, send_response
from gateway_web.server import HealthApp, expose

_VIDEO_TEMPLATE = "/media/{task_uid}/{index}/{signature}/{name}"
_TEMPORARY_TEMPLATE = "/temporary/{address}/{name}"
_PUT_TEMPLATE = "/temporary/{ticket}"
_TYPES = {"mp4": b"video/mp4", "webm": b"video/webm", "mov": b"video/quicktime"}
_HARMLESS = re.compile(r"(audio|video)/[a-z0-9.+-]+|image/(?!svg)[a-z0-9.+-]+|application/pdf")
_UNKNOWN_TYPE = b"application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaParts:
    """Dependencies of the media host."""

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


def create_media_app(
    parts: MediaParts, clock: Callable[[], float] = CLOCK.time, drain: Drain | None = None
) -> FastAPI:
    """Return the media host as an application; `clock` gives Unix seconds."""
    downloads = Downloads(parts.downloads)
    if parts.registry is not None:
        parts.registry.register(ConnectionMetrics(parts.connections, downloads))
    app = create_application(
        observers=Observers(parts.access), bounds=parts.connections.bounds, drain=drain
    )
    app.router.routes.extend(MediaHost(parts, clock, downloads).list_routes())
    return app


def create_media_health_app(parts: MediaParts, drain: Drain) -> ASGIApp:
    """Probes and metrics of the media host, for a port that clients do not reach."""
    registry = parts.registry
    return HealthApp(
        lambda: not drain.begun, None if registry is None else partial(expose, registry)
    )


class MediaHost:
    """Outputs of tasks below `/media/`, temporary files below `/temporary/`."""

    def __init__(self, parts: MediaParts, clock: Callable[[], float], downloads: Downloads) -> None:
        self._store = parts.store
        self._signer = parts.signer
        self._addresses = parts.addresses
        self._clock = clock
        self._sender = ContentSender(downloads)
        self._store_timeout = StoreTimeout(MEDIA_SECONDS)
        self._streams = StreamLimiter()

    def list_routes(self) -> list[BaseRoute]:
        """Return its routes."""
        temporary = PATH + "{address}/{name:path}"
        routes = (
            ("PUT", PATH + "{ticket}", self._serve_put),
            ("GET", temporary, self._send_temporary),
            ("GET", "/media/{address:path}", self._send_video),
            ("GET", "/healthz", self._show_health),
        )
        return [EndpointRoute(method, path, serve) for method, path, serve in routes]

    async def _show_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        get_context(scope).route = "operations_health"
        await send_response(send, Response(200, b'{"status":"ok"}'))

    async def _send_video(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, context = scope["path"], get_context(scope)
        item = self._signer.verify(path, self._clock())
        if item is None:
            raise NotFound("Not found.")
        context.route, context.template, context.task_uid = "media", _VIDEO_TEMPLATE, item.task_uid
        size = (await self._measure(item.key)).bytes
        media_type = _TYPES.get(path.rpartition(".")[2], _UNKNOWN_TYPE)

        def stream(start: int, length: int) -> AsyncGenerator[bytes, None]:
            return self._store.stream(
                item.key, start, length, chunk_bytes=DOWNLOAD_CHUNK_BYTES, read_ahead=False
            )

        tag = f'"{item.task_uid}.{item.index}.{size}"'.encode()
        content = _describe(scope, size, tag, [(b"content-type", media_type)], stream)
        await self._send(scope, receive, send, content)

    async def _send_temporary(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, context = scope["path"], get_context(scope)
        context.route, context.template = "media_temporary", _TEMPORARY_TEMPLATE
        address = self._addresses.find_address(path, self._clock())
        if address is None:
            raise NotFound("Not found.")
        if (await self._measure(address.key)).bytes != address.bytes:
            raise Unavailable("The file cannot be read now.")
        is_harmless = _HARMLESS.fullmatch(address.media_type)
        media_type = address.media_type.encode() if is_harmless else _UNKNOWN_TYPE
        headers: list[Header] = [
            (b"content-type", media_type),
            (b"content-disposition", write_disposition(path.rpartition("/")[2])),
        ]

        def stream(start: int, length: int) -> AsyncGenerator[bytes, None]:
            return stream_content(self._store, [address.segment], start, length)

        tag = f'"{address.sha256[:40]}"'.encode()
        content = _describe(scope, address.bytes, tag, headers, stream)
        await self._send(scope, receive, send, content)

    async def _send(self, scope: Scope, receive: Receive, send: Send, content: Content) -> None:
        try:
            await self._sender.send(scope, receive, send, content)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except RangeNotSatisfiable:
            size = (b"content-range", b"bytes */%d" % content.size)
            await send_empty(send, 416, [*content.basic_headers, size, (b"content-length", b"0")])

    async def _serve_put(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = get_context(scope)
        context.route, context.template = "media_put", _PUT_TEMPLATE
        ticket = self._addresses.find_put(scope["path"], self._clock())
        if ticket is None:
            raise NotFound("Not found.")
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if not declared.isdigit() or int(declared) != ticket.bytes:
            raise InvalidRequest(f"Content-Length must be {ticket.bytes}.")
        if await self._is_stored(ticket.key):
            raise Conflict("The upload was made already.")
        try:
            async with self._streams.take(ticket.account):
                body = _check_body(receive, ticket)
                await self._store.put_stream(ticket.key, body, max_bytes=ticket.bytes)
        except ObjectTooLarge:
            raise _wrong_size(ticket) from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be stored now.") from error
        await send_response(send, Response(200, b"{}"))

    async def _is_stored(self, key: str) -> bool:
        try:
            await self._measure(key)
        except NotFound:
            return False
        return True

    async def _measure(self, key: str) -> StoredObject:
        """Return the size of the object at `key`. NotFound, Unavailable."""
        try:
            async with self._store_timeout.bound():
                return await self._store.head(key)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error


def _describe(
    scope: Scope,
    size: int,
    tag: bytes,
    headers: list[Header],
    stream: Callable[[int, int], AsyncGenerator[bytes, None]],
) -> Content:
    return Content(
        size=size,
        tag=tag,
        cache_control=b"private, max-age=86400, immutable",
        headers=headers,
        holder=name_client(scope),
        # a link is known by its content: parts of its path may be chosen at will
        link=tag.decode(),
        open=stream,
    )


async def _check_body(receive: Receive, ticket: Ticket) -> AsyncGenerator[bytes, None]:
    """Yield the body; raises before its end if it is not the one that was announced."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    async for chunk in read_chunks(receive, ticket.bytes, _wrong_size(ticket)):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if size != ticket.bytes:
        raise _wrong_size(ticket)
    if digest.hexdigest() != ticket.md5:
        raise InvalidRequest("The body's MD5 is not the one that was announced.")


def _wrong_size(ticket: Ticket) -> InvalidRequest:
    return InvalidRequest(f"The body must have {ticket.bytes} bytes.")
