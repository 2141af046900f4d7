"""Stored bytes on their way to a client, for as long as he is there to take them.

Used by all who send contents: those of files, and the media host. A client that takes nothing any
more is cut off by `protocol`, and has left then like any other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from gateway_apiserver.trace import Header


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
