"""The object store as the media host serves it."""

from collections.abc import AsyncGenerator, Callable

from starlette.types import Receive, Scope, Send

from gateway_apiserver.content import Content, ContentSender
from gateway_apiserver.context import Header
from gateway_apiserver.middleware.clients import name_client
from gateway_apiserver.middleware.downloads import Downloads
from gateway_apiserver.responses import send_empty
from gateway_core.api.errors import NotFound, RangeNotSatisfiable, Unavailable
from gateway_core.storage.limits import MEDIA_SECONDS, StoreTimeout
from gateway_core.storage.objects import (
    ObjectMissing,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
)

Stream = Callable[[int, int], AsyncGenerator[bytes, None]]
"""Opens the bytes from a place on, of a length."""


class MediaStore:
    """What the media host reads of the store, and how it is sent."""

    def __init__(self, store: ObjectStore, downloads: Downloads) -> None:
        self._store = store
        self._sender = ContentSender(downloads)
        self._store_timeout = StoreTimeout(MEDIA_SECONDS)

    async def measure(self, key: str) -> StoredObject:
        """What is stored at `key`. NotFound, Unavailable."""
        try:
            async with self._store_timeout.bound():
                return await self._store.head(key)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be read now.") from error

    async def send(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        size: int,
        tag: bytes,
        headers: list[Header],
        stream: Stream,
    ) -> None:
        """Answer with `size` bytes, or the part asked for. Raises as `ContentSender.send`."""
        content = Content(
            size=size,
            tag=tag,
            cache_control=b"private, max-age=86400, immutable",
            headers=headers,
            holder=name_client(scope),
            # a link is known by its content: parts of its path may be chosen at will
            link=tag.decode(),
            open=stream,
        )
        try:
            await self._sender.send(scope, receive, send, content)
        except ObjectMissing:
            raise NotFound("Not found.") from None
        except RangeNotSatisfiable:
            refused = [(b"content-range", b"bytes */%d" % size), (b"content-length", b"0")]
            await send_empty(send, 416, [*content.basic_headers, *refused])
