"""A TCP load balancer that does as a Kubernetes Service: by connection, to who is ready, and late.

A backend gets new connections once it says that it is ready. One that leaves goes on getting them
for `lag` seconds, since nodes hear of it when they do; connections that stand are left alone.
"""

import asyncio
import itertools

from tests.servers.threadserver import ThreadServer

PROBE_SECONDS = 0.1


class Balancer(ThreadServer):
    """Usable from any thread, as a context manager."""

    def __init__(self, *, lag: float = 1.0) -> None:
        super().__init__()
        self._lag = lag
        self._backends: dict[int, float | None] = {}  # port -> since when it is not ready
        self._turns = itertools.count()
        self._server: asyncio.Server
        self._probes: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Connections that no backend took."""
        self.port = 0

    @property
    def base_url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, port: int) -> None:
        """Names a backend, which need not be there yet."""
        self._loop.call_soon_threadsafe(self._follow, port)

    def is_serving(self, port: int) -> bool:
        """Whether a backend gets new connections."""
        return port in self._choose()

    def _choose(self) -> list[int]:
        now, known = self._loop.time(), list(self._backends.items())
        return [port for port, left in known if left is None or now - left <= self._lag]

    async def open(self) -> None:
        """Begins to serve."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Serves no more."""
        self._server.close()

    def _follow(self, port: int) -> None:
        if port in self._backends:
            return
        self._backends[port] = float("-inf")
        self._probes.add(self._loop.create_task(self._probe(port)))

    async def _probe(self, port: int) -> None:
        # each by itself, and by its answers: one that is held up says nothing of the others
        while True:
            if await self._is_ready(port):
                self._backends[port] = None
            elif self._backends[port] is None:
                self._backends[port] = self._loop.time()
            await asyncio.sleep(PROBE_SECONDS)

    async def _is_ready(self, port: int) -> bool:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                    return (await reader.readline()).startswith(b"HTTP/1.1 200")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = None
        ports = self._choose()
        if ports:
            port = ports[next(self._turns) % len(ports)]
            try:
                far = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                far = None
        if far is None:
            self.refused += 1
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_pump(reader, far[1]), _pump(far[0], writer))
        except asyncio.CancelledError:
            return  # the balancer ends; a cancelled handler would be reported as a failure


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
