"""A TCP proxy that can be cut, slow or silent: the network between a process and its server."""

import asyncio
import random
from dataclasses import dataclass

from tests.servers.threadserver import ThreadServer


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


class Proxy(ThreadServer):
    """Forwards connections to `target`; usable from any thread, as a context manager."""

    def __init__(self, target: int) -> None:
        super().__init__()
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing: asyncio.Event  # of connections to come, and of those made since
        self._server: asyncio.Server
        self._refusing = False
        self._mute_after: int | None = None
        self._allowance: int | None = None
        self._allowed: asyncio.Event
        self._toxic = CLEAN
        self.struck = 0
        """Pieces that a toxic has met, and connections that `freeze` has stopped."""
        self.port = 0

    def cut(self) -> None:
        """Closes every connection; new ones are taken."""
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

    def mute_after(self, size: int | None) -> None:
        """Passes on no answer on a connection once that many bytes have come in one piece.

        What is large enough is heard by the target and never acknowledged; None ends it for
        connections to come.
        """
        self._mute_after = size

    def take_at_most(self, size: int | None) -> None:
        """Forwards so many bytes more of what clients send, on all connections; None for all."""
        self.run(self._take_at_most(size))

    def poison(self, toxic: Toxic) -> None:
        """Has the pieces to come delayed, slowed or reset; `CLEAN` ends it."""
        self._toxic = toxic

    def flow(self) -> None:
        """Forwards again what fell silent."""
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
        """Begins to serve."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._allowed = asyncio.Event()
        self._allowed.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Serves no more."""
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        flowing, muted = self._flowing, asyncio.Event()
        try:
            await flowing.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(
                self._pump(reader, far_writer, flowing, mutes=muted),
                self._pump(far_reader, writer, flowing, muted_by=muted),
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
        mutes: asyncio.Event | None = None,
        muted_by: asyncio.Event | None = None,
    ) -> None:
        try:
            while data := await reader.read(65536):
                await flowing.wait()
                if mutes and self._mute_after is not None and len(data) >= self._mute_after:
                    mutes.set()
                if muted_by and muted_by.is_set():
                    continue
                if self._toxic.delay:
                    self.struck += 1
                    await asyncio.sleep(self._toxic.delay)
                if random.random() < self._toxic.reset:
                    self.struck += 1
                    writer.transport.abort()
                    return
                while data:
                    piece = await self._allow(data) if mutes else data
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
