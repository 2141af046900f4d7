"""Stored bytes as responses: byte ranges and conditions (RFC 9110), bounded in number."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

import structlog
from starlette.types import Receive, Scope, Send

from gateway_core.api.errors import Internal, RangeNotSatisfiable, Unavailable
from gateway_core.storage.content import ContentDamaged
from gateway_core.storage.limits import MEDIA_SECONDS, Downloads, StoreTimeout
from gateway_core.storage.objects import StoreUnavailable
from gateway_web.context import Header, get_context
from gateway_web.responses import NO_SNIFF, send_chunks, send_empty, send_head

_SINGLE_RANGE = re.compile(r"bytes=\s*(\d{0,19})-(\d{0,19})\s*", re.IGNORECASE)
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"
"""Characters that RFC 5987 does not encode, beside letters and digits."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` to `end`, both inclusive."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Stored bytes, which never change; `tag` is their version.

    `open` streams a range by offset and length. Limits on downloads count by `holder` and `link`.
    counted by. `headers` describe the whole.
    """

    size: int
    tag: bytes
    cache_control: bytes
    headers: Sequence[Header]
    holder: str
    link: str
    open: Callable[[int, int], AsyncGenerator[bytes, None]]

    @property
    def basic_headers(self) -> list[Header]:
        """Headers of every response, also of one without a body."""
        return [
            (b"accept-ranges", b"bytes"),
            (b"cache-control", self.cache_control),
            (b"etag", self.tag),
            NO_SNIFF,
            # a tenant's bytes may be on the origin of the console: they never act on it
            (b"content-security-policy", b"sandbox"),
        ]


class ContentSender:
    """Sends contents, as many at once as `downloads` allows; `count` gets each chunk's size."""

    def __init__(
        self, downloads: Downloads, count: Callable[[int], object] = lambda size: None
    ) -> None:
        self._downloads = downloads
        self._count = count
        self._store_timeout = StoreTimeout(MEDIA_SECONDS)

    async def send(self, scope: Scope, receive: Receive, send: Send, content: Content) -> None:
        """Answer a GET or HEAD with the part of the content that it asks for.

        Raises, while nothing was sent: RangeNotSatisfiable; ObjectMissing; Unavailable, also for
        too many downloads; Internal for other bytes than were stored. ClientDisconnect.
        """
        given, is_head = dict(scope["headers"]), get_context(scope).is_head
        headers, size = content.basic_headers, content.size
        if _matches(given.get(b"if-none-match"), content.tag):
            await send_empty(send, 304, headers)
            return
        part = None
        if not is_head and given.get(b"if-range", content.tag) == content.tag:
            part = read_range(given.get(b"range", b"").decode("latin-1"), size)
        start, length = (0, size) if part is None else (part.start, part.length)
        headers += [*content.headers, (b"content-length", b"%d" % length)]
        if part is not None:
            headers.append((b"content-range", b"bytes %d-%d/%d" % (part.start, part.end, size)))
        status = 200 if part is None else 206
        if is_head:
            await send_empty(send, status, headers)
            return
        with self._downloads.take(content.holder, content.link):
            async with aclosing(content.open(start, length)) as chunks:
                # before the head, so that a store that fails now is reported by a status; no
                # reference to the chunk is kept here while a slow client takes it
                first = [await self._read_first(chunks)]
                await send_head(send, status, headers)
                await send_chunks(receive, send, first.pop(), chunks, self._count)

    async def _read_first(self, chunks: AsyncIterator[bytes]) -> bytes:
        try:
            async with self._store_timeout.bound():
                return await anext(chunks, b"")
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error
        except ContentDamaged as error:
            _log.error("a file has other bytes than were stored", error=str(error))
            raise Internal("The file's bytes are damaged.") from error


def read_range(header: str, size: int) -> ByteRange | None:
    """Return the single requested range; None if the whole content is to be sent.

    A header that is malformed, of another unit or of several ranges is ignored. Raises
    RangeNotSatisfiable for a range beyond the end.
    """
    match = _SINGLE_RANGE.fullmatch(header)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        wanted = int(match[2])
        if wanted == 0 or size == 0:
            raise RangeNotSatisfiable(size)
        return ByteRange(max(0, size - wanted), size - 1)
    start = int(match[1])
    end = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise RangeNotSatisfiable(size)
    return ByteRange(start, end)


def write_disposition(filename: str) -> bytes:
    """Return a Content-Disposition with which clients save the file, never show it (RFC 6266)."""
    plain = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\%' else "_" for c in filename
    )
    extended = quote(filename, safe=_ATTRIBUTE_CHARACTERS)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{extended}".encode()


def _matches(condition: bytes | None, tag: bytes) -> bool:
    """Return whether an `If-None-Match` names the tag, by the weak comparison of RFC 9110."""
    if condition is None:
        return False
    names = {name.strip().removeprefix(b"W/") for name in condition.split(b",")}
    return b"*" in names or tag in names
