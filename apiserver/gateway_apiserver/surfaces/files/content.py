"""Sending a File's bytes: whole, a range of them, or word that they have not changed (§3.5)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

import structlog

from gateway_apiserver.concurrency import MEDIA_SECONDS, StoreTimeout
from gateway_apiserver.context import Header
from gateway_apiserver.media import ranges
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.responses import send_chunks, send_empty, send_head
from gateway_apiserver.routing import Call
from gateway_core.api.errors import Internal, RangeNotSatisfiable, Unavailable
from gateway_core.api.resource import ObjectRef
from gateway_core.files.files import FileRecord
from gateway_core.storage.content import ContentDamaged, stream_content
from gateway_core.storage.objects import ObjectStore, StoreUnavailable

_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"
"""What stands for itself in RFC 5987's form, beside letters and digits."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Content:
    """What is sent: a file, and where its bytes lie."""

    record: FileRecord
    segments: Sequence[ObjectRef]


class ContentSender:
    """Sends contents, as many at once as `downloads` allows.

    `count` is called with the size of each piece that went out.
    """

    def __init__(
        self, store: ObjectStore, count: Callable[[int], None], downloads: Downloads
    ) -> None:
        self._store = store
        self._downloads = downloads
        self._count = count
        self._patience = StoreTimeout(MEDIA_SECONDS)

    async def send(self, call: Call, content: Content) -> None:
        """Answers the call.

        Raises:
            RangeNotSatisfiable: the range lies beyond the end.
            ObjectMissing: the bytes are gone, and nothing was sent yet.
            Unavailable: the store does not give them, or too many downloads are under way, and
                nothing was sent yet.
            Internal: they are not those that were stored, and nothing was sent yet.
            ClientDisconnect: the client has left before the end.
        """
        told = dict(call.headers)
        size, tag = content.record.bytes, _make_tag(content.record)
        headers: list[Header] = [
            (b"accept-ranges", b"bytes"),
            (b"cache-control", b"private, no-cache"),
            (b"etag", tag),
        ]
        if _matches(told.get(b"if-none-match"), tag):
            await send_empty(call.send, 304, headers)
            return
        part = None
        if not call.is_head and told.get(b"if-range", tag) == tag:
            try:
                part = ranges.read_range(told.get(b"range", b"").decode("latin-1"), size)
            except ranges.RangeNotSatisfiable:
                raise RangeNotSatisfiable(size) from None
        start, length = (0, size) if part is None else (part.start, part.length)
        headers += [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % length),
            (b"content-disposition", write_disposition(content.record.filename)),
            (b"x-content-type-options", b"nosniff"),
        ]
        if part is not None:
            headers.append((b"content-range", b"bytes %d-%d/%d" % (part.start, part.end, size)))
        status = 200 if part is None else 206
        if call.is_head:
            await send_empty(call.send, status, headers)
            return
        with self._downloads.take(content.record.account, content.record.name):
            chunks = stream_content(self._store, content.segments, start, length)
            await self._send_chunks(call, status, headers, chunks)

    async def _send_chunks(
        self, call: Call, status: int, headers: list[Header], chunks: AsyncGenerator[bytes, None]
    ) -> None:
        async with aclosing(chunks):
            # before the head, so that a store that fails now is told by a status
            first = [await self._read_first(chunks)]
            await send_head(call.send, status, headers)
            await send_chunks(call.receive, call.send, first.pop(), chunks, self._count)

    async def _read_first(self, chunks: AsyncIterator[bytes]) -> bytes:
        try:
            async with self._patience.bound():
                return await anext(chunks, b"")
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error
        except ContentDamaged as error:
            _log.error("a file has other bytes than were stored", error=str(error))
            raise Internal("The file's bytes are damaged.") from error


def write_disposition(filename: str) -> bytes:
    """A Content-Disposition that has every client save the file, never show it."""
    plain = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in filename
    )
    extended = quote(filename, safe=_ATTRIBUTE_CHARACTERS)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{extended}".encode()


def _make_tag(record: FileRecord) -> bytes:
    """A file never changes and its name is never given again, so that its name is its version."""
    return b'"%s"' % record.name.encode()


def _matches(condition: bytes | None, tag: bytes) -> bool:
    """Whether an `If-None-Match` names the tag, by the weak comparison of RFC 9110."""
    if condition is None:
        return False
    names = {name.strip().removeprefix(b"W/") for name in condition.split(b",")}
    return b"*" in names or tag in names
