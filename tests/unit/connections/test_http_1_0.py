"""HTTP/1.0 clients on a real socket: no chunks and no interim responses."""

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from gateway_web.http1.connections import ConnectionBounds, ConnectionTable
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange
from tests.servers.listener import listen

SECONDS = 30


async def relay(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers as a relayed stream does."""
    await receive()
    exchange: Exchange = scope[EXCHANGE_KEY]
    exchange.begin(200, [])
    for data in (b"", b"data: 1\n\n", b"data: 2\n\n"):
        exchange.write(data)
    exchange.finish(b"data: 3\n\n")


async def produce(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with stored bytes whose length is unknown."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for data in (b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"):
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize("app", [relay, produce])
@pytest.mark.parametrize("extra", [b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"])
async def test_connection_ends_a_body_of_unknown_length(app: object, extra: bytes) -> None:
    async with (
        asyncio.timeout(SECONDS),
        listen(app, ConnectionTable(ConnectionBounds())) as port,  # type: ignore[arg-type]
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.0\r\n%bContent-Length: 2\r\n\r\n{}" % extra)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
