"""A forward proxy: CONNECT tunnels, and requests in absolute form over plain http."""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from tests.servers.server import ThreadServer


class ForwardProxy(ThreadServer):
    """Resolves every name to loopback; usable from any thread, as a context manager.

    With `user` it demands that user and password. `status` other than 200 refuses all requests;
    while `hangs` is set it answers none. `seen` has the target of each request.
    """

    def __init__(self, *, user: str = "", status: int = 200) -> None:
        super().__init__()
        self._expected = "Basic " + base64.b64encode(user.encode()).decode() if user else ""
        self.status = status
        self.hangs = False
        self.seen: list[str] = []
        self.port = 0
        self._server: asyncio.Server

    @property
    def url(self) -> str:
        """Its address without credentials."""
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._handle(reader, writer)
        writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        self.seen.append(target)
        if self.hangs:
            await asyncio.Event().wait()
        status = self._judge(
            {n.lower(): v.strip() for n, _, v in (x.partition(":") for x in lines)}
        )
        if status != 200:
            writer.write(f"HTTP/1.1 {status} Refused\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        if method == "CONNECT":
            port = int(target.rpartition(":")[2])
            inner, sink = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            url = urlsplit(target)
            inner, sink = await asyncio.open_connection("127.0.0.1", url.port or 80)
            sink.write(head.replace(target, url.path or "/", 1).encode("latin-1"))
        await asyncio.gather(_pump(reader, sink), _pump(inner, writer))

    def _judge(self, headers: Mapping[str, str]) -> int:
        if self._expected and headers.get("proxy-authorization") != self._expected:
            return 407
        return self.status


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    writer.close()
