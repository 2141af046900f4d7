"""A body that was answered before its end is read on a little, and no further."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.responses import Response, send_response
from tests.servers.listener import listen

BLOCK = b"a" * 65_536
DRAINED_BYTES = ConnectionBounds().drained_bytes


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without a look at the body."""
    await send_response(send, Response(413, b"{}"))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Where it is served, by the gateway's protocol on a real socket."""
    async with listen(refuse, ConnectionTable(ConnectionBounds())) as port:
        yield port


async def ask(writer: asyncio.StreamWriter, size: int) -> None:
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    await writer.drain()


async def test_large_rest_of_a_body_is_not_read(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await ask(writer, 4 << 30)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
    sent = 0
    with pytest.raises(ConnectionError):  # noqa: PT012
        while sent < 1 << 30:
            writer.write(BLOCK)
            await writer.drain()
            sent += len(BLOCK)
    # and what the sockets hold
    assert DRAINED_BYTES <= sent < DRAINED_BYTES + (16 << 20)


async def test_small_rest_of_a_body_is_read_and_the_connection_stays(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        size = DRAINED_BYTES - 1
        await ask(writer, size)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 413 ")
        assert await reader.readexactly(2) == b"{}"
        writer.write(b"a" * size)
        await writer.drain()
    writer.close()
