"""Responses as ASGI messages: small ones whole, stored bytes chunk by chunk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response as StarletteResponse
from starlette.types import Message, Receive, Scope, Send

from gateway_core.api.errors import RateState
from gateway_web.context import Drain, Header, RequestContext, get_context
from gateway_web.http1.exchange import EXCHANGE_KEY, WITHOUT_BODY, Exchange

JSON: Header = (b"content-type", b"application/json")
NO_STORE: Header = (b"cache-control", b"no-store")
NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
REPLAYED: Header = (b"idempotent-replayed", b"true")
_CLOSE: Header = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class Response:
    """A status, a whole body and its headers, without Content-Length."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON, NO_STORE)

    def list_headers(self) -> list[Header]:
        """Return its headers and Content-Length, which a response without a body has not."""
        if self.status in WITHOUT_BODY:
            return [*self.headers]
        return [*self.headers, (b"content-length", b"%d" % len(self.body))]


class WholeResponse(StarletteResponse):
    """The same response for a framework; it is sent in one piece where the client can take it."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, response.status)
        self.raw_headers = response.list_headers()
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send_response(get_context(scope).sender, self._response)


def to_json(
    body: BaseModel | dict[str, Any],
    status: int = 200,
    *,
    replayed: bool = False,
    headers: tuple[Header, ...] = (),
) -> Response:
    """Return a JSON response that no cache may keep."""
    content = body.model_dump(by_alias=True) if isinstance(body, BaseModel) else body
    marks = (REPLAYED,) if replayed else ()
    return Response(status, orjson.dumps(content), (JSON, NO_STORE, *marks, *headers))


def list_rate_headers(state: RateState) -> list[Header]:
    """Return the three headers of every answer of a paid route (contract §12.2)."""
    return [
        (b"x-ratelimit-limit-rpm", b"%d" % state.limit),
        (b"x-ratelimit-remaining-rpm", b"%d" % state.remaining),
        (b"x-ratelimit-reset", b"%d" % state.reset),
    ]


class ResponseSender:
    """Sends the response to one request, with the headers of its context and its request id.

    `status` is 0 until the response has begun. Once the drain has begun, its connection closes.
    """

    __slots__ = ("_context", "_drain", "_exchange", "_send", "status")

    def __init__(self, send: Send, scope: Scope, context: RequestContext, drain: Drain) -> None:
        self.status = 0
        self._send = send
        self._context = context
        # a test's client has none
        self._exchange: Exchange | None = scope.get(EXCHANGE_KEY)
        self._drain = drain

    async def __call__(self, message: Message) -> None:
        """Send a part of the response, as ASGI has it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._list_headers(message["headers"])
        elif self._context.is_head:
            message["body"] = b""
        await self._send(message)

    def respond(self, response: Response) -> bool:
        """Send a whole response at once, if the client can take it now."""
        exchange = self._exchange
        if exchange is None or exchange.is_behind or self._context.is_head:
            return False
        self.status = response.status
        exchange.respond(response.status, self._list_headers(response.headers), response.body)
        return True

    def begin(self, status: int, headers: Iterable[Header]) -> bool:
        """Begin a response at once, if the client can take it now."""
        exchange = self._exchange
        if exchange is None or exchange.is_behind:
            return False
        self.status = status
        exchange.begin(status, self._list_headers(headers))
        return True

    def _list_headers(self, headers: Iterable[Header]) -> list[Header]:
        context = self._context
        found = [*headers]
        if context.rate is not None:
            found += list_rate_headers(context.rate)
        found += context.headers
        found.append((b"x-request-id", context.request_id.encode()))
        if self._drain.begun:
            found.append(_CLOSE)
        return found


async def send_response(send: Send, response: Response) -> None:
    """Send `response`."""
    if isinstance(send, ResponseSender) and send.respond(response):
        return
    await send_head(send, response.status, response.list_headers())
    await send({"type": "http.response.body", "body": response.body})


async def send_head(send: Send, status: int, headers: Sequence[Header]) -> None:
    """Begin a response."""
    if isinstance(send, ResponseSender) and send.begin(status, headers):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_end(send: Send, client: Exchange, data: bytes) -> None:
    """Send the last bytes of a chunked body that `client` gets."""
    if client.is_behind:
        await send({"type": "http.response.body", "body": data})
    else:
        client.finish(data)


async def send_empty(send: Send, status: int, headers: Sequence[Header]) -> None:
    """Send a response without a body."""
    await send_head(send, status, headers)
    await send({"type": "http.response.body", "body": b""})


async def send_chunks(
    receive: Receive,
    send: Send,
    chunk: bytes,
    rest: AsyncIterator[bytes],
    count: Callable[[int], object] = lambda size: None,
) -> None:
    """Send the whole body after its head: `chunk` and the rest; `count` gets each chunk's size.

    The next chunk is read once the client has taken this one, and none is kept here meanwhile: a
    slow client costs one chunk, the part of it that the transport has not sent.

    Raises ClientDisconnect.
    """
    # a server drops what is sent to a client that has left without an error, so the disconnect is
    # awaited beside the sends: else the store would be read to the end in vain
    leaving = asyncio.ensure_future(_wait_left(receive))
    try:
        while chunk:
            size = len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = b""
            # a server waits for its client before it takes more
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            if leaving.done():
                raise ClientDisconnect
            count(size)
            chunk = await anext(rest, b"")
    finally:
        leaving.cancel()
    await send({"type": "http.response.body", "body": b""})


async def _wait_left(receive: Receive) -> None:
    """Wait until the client has left; a body that arrives meanwhile is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
