"""An upstream on a raw socket, which a test drives byte by byte."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from gateway_core.llm.client import Client
from gateway_core.llm.connection import Response, Timeouts

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
SECONDS = 25.0
"""What anything may take that a test waits for."""


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next request; asyncio.IncompleteReadError at the connection's end."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


class Upstream:
    """Serves each connection by `serve`; counts the connections, and the ones open."""

    def __init__(self, serve: Serve) -> None:
        self.port = 0
        self.connections = self.open = self.most_open = 0
        self._serve = serve
        self._ended = asyncio.Condition()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()
        async with self._ended:
            self.open -= 1
            self._ended.notify_all()

    async def wait_until_open(self, count: int) -> None:
        """Returns when at most so many connections are open."""
        async with asyncio.timeout(SECONDS), self._ended:
            await self._ended.wait_for(lambda: self.open <= count)

    def client(
        self, limit: int = 8, *, tls: ssl.SSLContext | None = None, **times: float
    ) -> Client:
        """A client that keeps free connections; `times` are of its Timeouts."""
        url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        return Client(url, limit, timeouts=Timeouts(**times), tls=tls, idle_seconds=60.0)


@asynccontextmanager
async def listen(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """An upstream on a free port of loopback."""
    upstream = Upstream(serve)
    server = await asyncio.start_server(upstream.accept, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


def answer_with(*pieces: bytes) -> Serve:
    """Answers each request with the pieces, each of which arrives alone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await write_apart(writer, *pieces)

    return serve


def answer_once(*pieces: bytes, holds: bool = False) -> Serve:
    """Answers one request with the pieces, and hangs up; `holds`: leaves that to the client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await write_apart(writer, *pieces)
        if holds:
            await wait_for_eof(reader)

    return serve


async def write_apart(writer: asyncio.StreamWriter, *pieces: bytes) -> None:
    """Writes each piece after the client's loop has read the one before."""
    for piece in pieces:
        writer.write(piece)
        for _ in range(3):
            await asyncio.sleep(0)


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends the connection by RST."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def wait_until_paused(response: Response) -> None:
    """Returns when the client reads no more, since nobody takes what it has."""
    async with asyncio.timeout(SECONDS):
        while not (response.source and response.source.is_paused):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def wait_for_eof(reader: asyncio.StreamReader) -> None:
    """Returns when the client has closed its connection."""
    while await reader.read(1 << 16):
        pass


async def post(client: Client, body: bytes = b"{}") -> Response:
    """Sends a request and returns its response, unread."""
    async with asyncio.timeout(SECONDS):
        return await client.send(client.prepare("POST", "/v1/chat", {"x-test": "1"}), body)


async def post_and_read(client: Client, body: bytes = b"{}") -> bytes:
    """The body of the response to a request."""
    return await (await post(client, body)).read(1 << 30)
