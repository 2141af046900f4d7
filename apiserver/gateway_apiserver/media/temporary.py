"""Temporary files on the media host: read by address, and put with a ticket (contract §2.5).

A client's media type is not trusted: only types that no browser executes are passed on, and all
files are sent as attachments. A ticket is for one PUT: what is stored is not stored again.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from gateway_apiserver.content import write_disposition
from gateway_apiserver.context import Header, get_context
from gateway_apiserver.media.store import MediaStore
from gateway_apiserver.responses import Response, send_response
from gateway_core.api.errors import (
    Conflict,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unavailable,
)
from gateway_core.files.addresses import Address, TemporaryAddresses, Ticket
from gateway_core.storage.content import stream_content
from gateway_core.storage.limits import StreamLimiter
from gateway_core.storage.objects import ObjectStore, ObjectTooLarge, StoreUnavailable

_READ_TEMPLATE = "/temporary/{address}/{name}"
_PUT_TEMPLATE = "/temporary/{ticket}"
_HARMLESS = re.compile(r"(audio|video)/[a-z0-9.+-]+|image/(?!svg)[a-z0-9.+-]+|application/pdf")
_UNKNOWN_TYPE = "application/octet-stream"


class TemporaryHost:
    """Everything below `/temporary/`. `clock` gives Unix seconds."""

    def __init__(
        self,
        store: ObjectStore,
        addresses: TemporaryAddresses,
        media: MediaStore,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._addresses = addresses
        self._media = media
        self._streams = StreamLimiter()
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        is_put_path = scope["path"].count("/") == 2
        methods = ("PUT",) if is_put_path else ("GET", "HEAD")
        if scope["method"] not in methods:
            raise MethodNotAllowed(", ".join(methods))
        context = get_context(scope)
        if is_put_path:
            context.route, context.template = "media_put", _PUT_TEMPLATE
            ticket = self._addresses.find_put(scope["path"], self._clock())
            if ticket is None:
                raise NotFound("Not found.")
            await self._put(Request(scope), receive, ticket)
            await send_response(send, Response(200, b"{}"))
            return
        context.route, context.template = "media_temporary", _READ_TEMPLATE
        address = self._addresses.find_address(scope["path"], self._clock())
        if address is None:
            raise NotFound("Not found.")
        await self._send(scope, receive, send, address)

    async def _send(self, scope: Scope, receive: Receive, send: Send, address: Address) -> None:
        stored = await self._media.measure(address.key)
        if stored.bytes != address.bytes:
            raise Unavailable("The file cannot be read now.")
        name = scope["path"].rpartition("/")[2]
        kind = address.media_type if _HARMLESS.fullmatch(address.media_type) else _UNKNOWN_TYPE
        headers: list[Header] = [
            (b"content-type", kind.encode()),
            (b"content-disposition", write_disposition(name)),
        ]

        def stream(start: int, length: int) -> AsyncGenerator[bytes, None]:
            return stream_content(self._store, [address.segment], start, length)

        tag = f'"{address.sha256[:40]}"'.encode()
        await self._media.send(scope, receive, send, address.bytes, tag, headers, stream)

    async def _put(self, request: Request, receive: Receive, ticket: Ticket) -> None:
        """Stores the body, if it is what the ticket is for. InvalidRequest, Conflict."""
        declared = request.headers.get("content-length", "")
        if not declared.isdigit() or int(declared) != ticket.bytes:
            raise InvalidRequest(f"Content-Length must be {ticket.bytes}.")
        if await self._is_there(ticket):
            raise Conflict("The upload was made already.")
        try:
            async with self._streams.take(ticket.account):
                body = _check(receive, ticket)
                await self._store.put_stream(ticket.key, body, max_bytes=ticket.bytes)
        except ObjectTooLarge:
            raise InvalidRequest(f"The body must have {ticket.bytes} bytes.") from None
        except StoreUnavailable as error:
            raise Unavailable("The file cannot be stored now.") from error

    async def _is_there(self, ticket: Ticket) -> bool:
        try:
            await self._media.measure(ticket.key)
        except NotFound:
            return False
        return True


async def _check(receive: Receive, ticket: Ticket) -> AsyncIterator[bytes]:
    """The body; raises before its end where it is another one than was announced."""
    digest, size = hashlib.md5(usedforsecurity=False), 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        digest.update(chunk)
        size += len(chunk)
        if chunk:
            yield chunk
    if size != ticket.bytes:
        raise InvalidRequest(f"The body must have {ticket.bytes} bytes.")
    if digest.hexdigest() != ticket.md5:
        raise InvalidRequest("The body's MD5 is not the one that was announced.")
