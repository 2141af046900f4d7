"""TCP proxies: one that can be cut, slow or silent, and a load balancer."""

import asyncio
import itertools
import random
from dataclasses import dataclass

from tests.servers.server import ThreadServer


@dataclass(frozen=True)
class Toxic:
    """What happens to each piece that is forwarded, in either direction.

    It is late by `delay` seconds, passes at `rate` bytes a second, and with the probability `reset`
    both sides are reset instead.
    """

    delay: float = 0.0
    rate: float | None = None
    reset: float = 0.0


CLEAN = Toxic()
PROBE_SECONDS = 0.1


class Proxy(ThreadServer):
    """Forwards connections to `target`; usable from any thread, as a context manager."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self._target = target
        self.refused = 0
        """Connections that nothing took."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing: asyncio.Event  # of connections to come, and of those made since
        self._server: asyncio.Server
        self._refusing = False
        self._allowance: int | None = None
        self._allowed: asyncio.Event
        self._toxic = CLEAN
        self.struck = 0
        """Pieces that a toxic has met, and connections that `freeze` has stopped."""
        self.port = 0

    def point_to(self, target: int) -> None:
        """Forwards new connections to `target`, as a name does that moves; open ones stay."""
        self._target = target

    def cut(self) -> None:
        self.run(self._cut())

    def fall_silent(self) -> None:
        """Keeps connections open, takes new ones, and forwards nothing."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def freeze(self) -> None:
        """Forwards nothing on the connections there are, ever; new ones work."""
        self.run(self._freeze())

    def refuse(self) -> None:
        """Closes every connection, and each new one at once."""
        self._refusing = True
        self.cut()

    def take_at_most(self, size: int | None) -> None:
        """Forwards so many bytes more of what clients send, on all connections; None for all."""
        self.run(self._take_at_most(size))

    def poison(self, toxic: Toxic) -> None:
        """Has the pieces to come delayed, slowed or reset; `CLEAN` ends it."""
        self._toxic = toxic

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    async def _freeze(self) -> None:
        self.struck += len(self._writers)
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _take_at_most(self, size: int | None) -> None:
        self._allowance = size
        if size == 0:
            self._allowed.clear()
        else:
            self._allowed.set()

    async def open(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    def _choose_target(self) -> int:
        """The port of a new connection's server; OSError where there is none."""
        return self._target

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        flowing = self._flowing
        try:
            await flowing.wait()
            target = self._choose_target()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            self.refused += 1
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, flowing, is_bounded=True),
                self._pump(far_reader, writer, flowing),
            )
        except asyncio.CancelledError:
            return  # the proxy ends; a cancelled handler would be reported as a failure
        finally:
            self._writers -= {writer, far_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flowing: asyncio.Event,
        *,
        is_bounded: bool = False,
    ) -> None:
        try:
            while data := await reader.read(65536):
                await flowing.wait()
                if self._toxic.delay:
                    self.struck += 1
                    await asyncio.sleep(self._toxic.delay)
                if random.random() < self._toxic.reset:
                    self.struck += 1
                    writer.transport.abort()
                    return
                while data:
                    piece = await self._allow(data) if is_bounded else data
                    if rate := self._toxic.rate:
                        self.struck += 1
                        piece = piece[: max(1, int(rate / 10))]
                        await asyncio.sleep(len(piece) / rate)
                    writer.write(piece)
                    await writer.drain()
                    data = data[len(piece) :]
        except OSError:
            pass
        finally:
            writer.close()

    async def _allow(self, data: bytes) -> bytes:
        """As much of what a client has sent as may be forwarded, once something may."""
        while not self._allowed.is_set():  # another connection may take it all
            await self._allowed.wait()
        if self._allowance is None:
            return data
        piece = data[: self._allowance]
        await self._take_at_most(self._allowance - len(piece))
        return piece


class Balancer(Proxy):
    """A TCP load balancer like a Kubernetes Service: by connection, to ready backends, and late.

    A backend gets new connections once it says that it is ready. One that leaves goes on getting
    them for `lag` seconds, since nodes learn of it late; open connections are left alone.
    """

    def __init__(self, *, lag: float = 1.0) -> None:
        super().__init__(0)
        self._lag = lag
        self._backends: dict[int, float | None] = {}  # port -> since when it is not ready
        self._turns = itertools.count()
        self._probes: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, port: int, health: int | None = None) -> None:
        """Names a backend, which need not be there yet; `health` is another port to be asked."""
        self._loop.call_soon_threadsafe(self._follow, port, health or port)

    def is_serving(self, port: int) -> bool:
        return port in self._list_serving()

    def _list_serving(self) -> list[int]:
        now, known = self._loop.time(), list(self._backends.items())
        return [port for port, left in known if left is None or now - left <= self._lag]

    def _choose_target(self) -> int:
        ports = self._list_serving()
        if not ports:
            raise ConnectionRefusedError
        return ports[next(self._turns) % len(ports)]

    def _follow(self, port: int, health: int) -> None:
        if port in self._backends:
            return
        self._backends[port] = float("-inf")
        self._probes.add(self._loop.create_task(self._probe(port, health)))

    async def _probe(self, port: int, health: int) -> None:
        # each by itself, and by its answers: one that is held up says nothing of the others
        while True:
            if await self._is_ready(health):
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
