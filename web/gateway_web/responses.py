"""Responses as ASGI messages: small ones whole, stored bytes chunk by chunk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from gateway_web.context import Header

JSON: Header = (b"content-type", b"application/json")
NO_STORE: Header = (b"cache-control", b"no-store")
REPLAYED: Header = (b"idempotent-replayed", b"true")


@dataclass(frozen=True, slots=True)
class Response:
    """A status, a whole body and its headers, without Content-Length."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON, NO_STORE)


def to_json(
    body: BaseModel | dict[str, Any],
    status: int = 200,
    *,
    replayed: bool = False,
    headers: tuple[Header, ...] = (),
) -> Response:
    """A JSON response that no cache may keep."""
    content = body.model_dump(by_alias=True) if isinstance(body, BaseModel) else body
    marks = (REPLAYED,) if replayed else ()
    return Response(status, orjson.dumps(content), (JSON, NO_STORE, *marks, *headers))


async def send_response(send: Send, response: Response, *, with_body: bool = True) -> None:
    """Send `response`; without its body for a HEAD."""
    body = response.body
    headers = [*response.headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body if with_body else b""})


async def send_head(send: Send, status: int, headers: Sequence[Header]) -> None:
    """Begin a response."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


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
