"""The media host as one ASGI application: signed addresses in, bytes out, memory flat.

It knows neither tasks nor accounts. Whoever has an address may read; there are no others to guess.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_apiserver.accesslog import AccessLog
from gateway_apiserver.answers import Answer, send_answer
from gateway_apiserver.edge import Edge, Witnesses
from gateway_apiserver.media.ranges import ByteRange, RangeNotSatisfiable, read_range
from gateway_apiserver.patience import MEDIA_SECONDS, Patience
from gateway_apiserver.trace import Header, trace_of
from gateway_core.contract.errors import MethodNotAllowed, NotFound, Unavailable
from gateway_core.contract.media import MediaItem, MediaSigner
from gateway_core.ports.objects import (
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
)

_METHODS = ("GET", "HEAD")
_TEMPLATE = "/media/{task_uid}/{index}/{signature}/{name}"
_TYPES = {"mp4": b"video/mp4", "webm": b"video/webm", "mov": b"video/quicktime"}
_UNKNOWN_TYPE = b"application/octet-stream"


@dataclass(frozen=True, slots=True)
class MediaParts:
    """What the media host is made of."""

    store: ObjectStore
    signer: MediaSigner
    access: AccessLog = field(default_factory=AccessLog)


def create_media_app(parts: MediaParts, clock: Callable[[], float] = time.time) -> ASGIApp:
    """The media host on these parts; `clock` gives Unix seconds."""
    return Edge(_MediaHost(parts, clock), Witnesses(parts.access))


class _MediaHost:
    def __init__(self, parts: MediaParts, clock: Callable[[], float]) -> None:
        self._store = parts.store
        self._patience = Patience(MEDIA_SECONDS)
        self._signer = parts.signer
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["method"] not in _METHODS:
            raise MethodNotAllowed(", ".join(_METHODS))
        if path == "/healthz":
            trace_of(scope).route = "operations_health"
            answer = Answer(200, b'{"status":"ok"}')
            await send_answer(send, answer, with_body=scope["method"] == "GET")
            return
        item = self._signer.verify(path, self._clock())
        if item is None:
            raise NotFound("Not found.")
        trace = trace_of(scope)
        trace.route, trace.template, trace.task_uid = "media", _TEMPLATE, item.task_uid
        await self._send_item(Request(scope), send, item)

    async def _send_item(self, request: Request, send: Send, item: MediaItem) -> None:
        try:
            async with self._patience.bound():
                stored = await self._store.head(item.key)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error
        tag = f'"{item.task_uid}.{item.index}.{stored.bytes}"'
        headers: list[Header] = [
            (b"accept-ranges", b"bytes"),
            (b"cache-control", b"private, max-age=86400, immutable"),
            (b"etag", tag.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        if _matches(request.headers.get("if-none-match"), tag):
            await _send_head(send, 304, headers)
            await send({"type": "http.response.body", "body": b""})
            return
        wanted = request.headers.get("range") if request.method == "GET" else None
        condition = request.headers.get("if-range")
        try:
            part = read_range(wanted, stored.bytes) if condition in (None, tag) else None
        except RangeNotSatisfiable:
            size = b"bytes */%d" % stored.bytes
            refused = [*headers, (b"content-range", size), (b"content-length", b"0")]
            await _send_head(send, 416, refused)
            await send({"type": "http.response.body", "body": b""})
            return
        await self._send_bytes(request, send, stored, part, headers)

    async def _send_bytes(
        self,
        request: Request,
        send: Send,
        stored: StoredObject,
        part: ByteRange | None,
        headers: list[Header],
    ) -> None:
        extension = request.url.path.rpartition(".")[2]
        length = stored.bytes if part is None else part.length
        headers += [
            (b"content-type", _TYPES.get(extension, _UNKNOWN_TYPE)),
            (b"content-length", b"%d" % length),
        ]
        if part is not None:
            place = b"bytes %d-%d/%d" % (part.start, part.end, stored.bytes)
            headers.append((b"content-range", place))
        status = 200 if part is None else 206
        if request.method == "HEAD":
            await _send_head(send, status, headers)
            await send({"type": "http.response.body", "body": b""})
            return
        start = 0 if part is None else part.start
        async with aclosing(self._store.stream(stored.key, start, length)) as chunks:
            # before the head, so that a store that fails now is told by a status
            chunk = await self._read_first(chunks)
            await _send_head(send, status, headers)
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(chunks, b"")
        await send({"type": "http.response.body", "body": b""})

    async def _read_first(self, chunks: AsyncIterator[bytes]) -> bytes:
        """The first chunk, nothing of an empty object. NotFound, Unavailable."""
        try:
            async with self._patience.bound():
                return await anext(chunks, b"")
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error


async def _send_head(send: Send, status: int, headers: list[Header]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _matches(condition: str | None, tag: str) -> bool:
    """Whether an `If-None-Match` names the tag, by the weak comparison of RFC 9110."""
    if condition is None:
        return False
    names = {name.strip().removeprefix("W/") for name in condition.split(",")}
    return "*" in names or tag in names
