"""Sending stored bytes with ranges and conditions (RFC 9110); used for all that the host serves."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from starlette.requests import Request
from starlette.types import Send

from gateway_apiserver.concurrency import StoreTimeout
from gateway_apiserver.context import Header
from gateway_apiserver.media.ranges import RangeNotSatisfiable, read_range
from gateway_apiserver.middleware.clients import name_client
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.responses import send_chunks, send_empty, send_head
from gateway_core.api.errors import NotFound, Unavailable
from gateway_core.storage.objects import (
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
)

Stream = Callable[[int, int], AsyncGenerator[bytes, None]]
"""Opens the bytes from a place on, of a length."""


class Sender:
    """Sends what does not change: its address is its version."""

    def __init__(self, store: ObjectStore, patience: StoreTimeout, downloads: Downloads) -> None:
        self._store = store
        self._patience = patience
        self._downloads = downloads

    async def measure(self, key: str) -> StoredObject:
        """What is stored at `key`. NotFound, Unavailable."""
        try:
            async with self._patience.bound():
                return await self._store.head(key)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error

    async def send(
        self,
        request: Request,
        send: Send,
        size: int,
        tag: str,
        extra: list[Header],
        stream: Stream,
    ) -> None:
        """Answers with the part that is asked for of `size` bytes.

        `request` has its `receive`; `tag` names the content. Raises NotFound, Unavailable, also
        where too many downloads are under way; ClientDisconnect where the client has left before
        the end.
        """
        headers: list[Header] = [
            (b"accept-ranges", b"bytes"),
            (b"cache-control", b"private, max-age=86400, immutable"),
            (b"etag", tag.encode()),
            (b"x-content-type-options", b"nosniff"),
        ]
        if _matches(request.headers.get("if-none-match"), tag):
            await send_empty(send, 304, headers)
            return
        wanted = request.headers.get("range") if request.method == "GET" else None
        condition = request.headers.get("if-range")
        try:
            part = read_range(wanted, size) if condition in (None, tag) else None
        except RangeNotSatisfiable:
            refused = [(b"content-range", b"bytes */%d" % size), (b"content-length", b"0")]
            await send_empty(send, 416, [*headers, *refused])
            return
        length = size if part is None else part.length
        headers += [*extra, (b"content-length", b"%d" % length)]
        if part is not None:
            place = b"bytes %d-%d/%d" % (part.start, part.end, size)
            headers.append((b"content-range", place))
        status = 200 if part is None else 206
        if request.method == "HEAD":
            await send_empty(send, status, headers)
            return
        # a link is known by its content: parts of its path may be chosen at will
        with self._downloads.take(name_client(request.scope), tag):
            chunks = stream(0 if part is None else part.start, length)
            await self._send_chunks(request, send, status, headers, chunks)

    async def _send_chunks(
        self,
        request: Request,
        send: Send,
        status: int,
        headers: list[Header],
        stream: AsyncGenerator[bytes, None],
    ) -> None:
        async with aclosing(stream) as chunks:
            # before the head, so that a store that fails now is told by a status
            first = [await self._read_first(chunks)]
            await send_head(send, status, headers)
            await send_chunks(request.receive, send, first.pop(), chunks)

    async def _read_first(self, chunks: AsyncIterator[bytes]) -> bytes:
        """The first chunk, nothing of an empty object. NotFound, Unavailable."""
        try:
            async with self._patience.bound():
                return await anext(chunks, b"")
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error


def _matches(condition: str | None, tag: str) -> bool:
    """Whether an `If-None-Match` names the tag, by the weak comparison of RFC 9110."""
    if condition is None:
        return False
    names = {name.strip().removeprefix("W/") for name in condition.split(",")}
    return "*" in names or tag in names
