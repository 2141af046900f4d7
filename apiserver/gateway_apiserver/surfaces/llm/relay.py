"""The way of a stream from its provider to its client, by callbacks of both connections.

A coroutine would be woken for each piece; here the provider's connection calls the relay, which
writes to the client's. A client that is behind is written nothing: what comes meanwhile waits in
the response, whose connection is not read beyond its bound.
"""

import asyncio
from collections.abc import Callable

from gateway_apiserver.surfaces.llm.large_answers import AnswerDropped, FrameRoom
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.response import Response
from gateway_web.http1.exchange import Exchange, ignore

KEEP_ALIVE_SECONDS = 15.0
LATE_USAGE_SECONDS = 1.0
"""Time for a provider that has ended its stream to send its usage, or to hang up."""


class KeepAlive:
    """Sends what `make` returns whenever `client` was sent nothing for 15 s (§7.2, §7.3, §8.5).

    `last` is when it was sent something, by the loop's clock.
    """

    __slots__ = ("_client", "_loop", "_timer", "last", "make")

    def __init__(self, client: Exchange, make: Callable[[], bytes]) -> None:
        self.last = 0.0
        self.make = make
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch the client, whose response has begun."""
        self.last = self._loop.time()
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._look)

    def stop(self) -> None:
        """Send nothing more. Repeatable."""
        # it may hold the call, which holds this
        self.make = bytes
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """Send a keep-alive now, unless the client is behind."""
        # a client that takes nothing has the last one still before it
        if not self._client.is_behind:
            self._client.write(self.make())
        self.last = self._loop.time()

    def _look(self) -> None:
        """Send a keep-alive if it is time, and look again when the next one may be due."""
        if self._loop.time() >= self.last + KEEP_ALIVE_SECONDS:
            self.beat()
        self._timer = self._loop.call_at(self.last + KEEP_ALIVE_SECONDS, self._look)


class Relay:
    """Passes a provider's `response` through `stream` to `client`, whose response has begun.

    `first` is when the first output came, by the monotonic clock; 0 before.
    """

    __slots__ = (
        "_client",
        "_done",
        "_keep_alive",
        "_late",
        "_loop",
        "_response",
        "_room",
        "_stream",
        "_taking",
        "first",
    )

    def __init__(
        self,
        response: Response,
        stream: LlmStream,
        client: Exchange,
        keep_alive: KeepAlive,
        room: FrameRoom | None = None,
    ) -> None:
        self.first = 0.0
        self._response = response
        self._stream = stream
        self._client = client
        self._keep_alive = keep_alive
        self._room = room
        self._taking: asyncio.Task[None] | None = None
        """Waits for room for a large frame; nothing is read meanwhile."""
        self._late: asyncio.TimerHandle | None = None
        """Ends the wait for the usage."""
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bytes] = self._loop.create_future()

    async def run(self, held: bytes) -> bytes:
        """Pass the frames `held` and the stream on; its last frames, which are not sent yet.

        Raises what `Response.take` and `LlmStream.feed` do.
        """
        if self._stream.text_bytes:
            self.first = self._loop.time()
        if self._stream.ended:
            return held
        # the head goes with it
        self._client.write(held)
        self._response.on_event = self._client.on_drained = self._step
        if self._stream.is_done:
            self._limit_wait()
        try:
            self._step()
            return await self._done
        finally:
            self._response.on_event = None
            self._client.on_drained = ignore
            if self._taking is not None:
                self._taking.cancel()
            if self._late is not None:
                self._late.cancel()
            if self._room is not None:
                self._room.release()

    def _step(self) -> None:
        """Pass on what has come, unless the client is behind."""
        client, response, done = self._client, self._response, self._done
        try:
            stream = self._stream
            while not (client.is_behind or done.done() or self._taking is not None):
                room = self._room
                if room is not None and not room.has(stream.waiting_bytes):
                    self._taking = self._loop.create_task(self._take_room(room))
                    return
                data = response.take()
                if not data:
                    if response.is_whole:
                        done.set_result(b"")
                    return
                frames = stream.feed(data)
                if stream.ended:
                    done.set_result(frames)
                elif frames:
                    client.write(frames)
                    self._keep_alive.last = self._loop.time()
                if stream.is_done:
                    self._limit_wait()
                if not self.first and stream.text_bytes:
                    self.first = self._loop.time()
                if response.source is not None and not response.chunks:
                    # mostly nothing else has come meanwhile
                    return
        except Exception as error:
            # raised by `run`: the connection that calls this is not to end by it
            if self._stream.is_done:
                # nothing but the usage is missing
                self._end()
            else:
                done.set_exception(error)

    def _limit_wait(self) -> None:
        """Wait for the usage of a provider that has ended its stream, but not for long."""
        if self._late is None and not self._done.done():
            self._late = self._loop.call_later(LATE_USAGE_SECONDS, self._end)

    def _end(self) -> None:
        if not self._done.done():
            self._done.set_result(b"")

    async def _take_room(self, room: FrameRoom) -> None:
        try:
            await room.take(self._stream.waiting_bytes)
        except AnswerDropped as dropped:
            # the provider has written it
            self._stream.text_bytes += dropped.size
            if not self._done.done():
                self._done.set_exception(dropped)
            return
        self._taking = None
        self._step()
