"""Responses as ASGI messages: small ones whole, stored bytes chunk by chunk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from gateway_apiserver.context import Header

JSON: Header = (b"content-type", b"application/json")
NO_STORE: Header = (b"cache-control", b"no-store")


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a JSON body and the headers that come with it (without its length)."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON, NO_STORE)


async def send_answer(send: Send, answer: Answer, *, with_body: bool = True) -> None:
    """Sends `answer`; without its body for a HEAD."""
    body = answer.body
    headers = [*answer.headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body if with_body else b""})


async def send_head(send: Send, status: int, headers: Sequence[Header]) -> None:
    """Begins an answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_nothing(send: Send, status: int, headers: Sequence[Header]) -> None:
    """An answer without a body."""
    await send_head(send, status, headers)
    await send({"type": "http.response.body", "body": b""})


async def send_chunks(
    receive: Receive,
    send: Send,
    chunk: bytes,
    rest: AsyncIterator[bytes],
    count: Callable[[int], object] = lambda size: None,
) -> None:
    """The whole body, after its head: `chunk` and the rest; `count` gets each chunk's size.

    The next chunk is asked for once the client has taken this one, and none is kept here meanwhile:
    a slow client holds one of them, the part of it that the transport has not sent.

    Servers take what is sent to a client that has left without a word, so it is asked for beside
    that, and nothing is read from the store in vain. ClientDisconnect.
    """
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
    """Until the client has left; a body that comes meanwhile is not looked at."""
    while (await receive())["type"] != "http.disconnect":
        pass
