"""The way of a stream from its provider to its client, by callbacks of both connections.

A coroutine would be woken for each piece; here the provider's connection calls the relay, which
writes to the client's. A client that is behind is written nothing: what comes meanwhile waits in
the response, whose connection is not read beyond its bound.
"""

import asyncio

from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.response import Response
from gateway_web.http1.exchange import Exchange, ignore

KEEP_ALIVE_SECONDS = 15.0


class Relay:
    """Passes a provider's `response` through `stream` to `client`, whose response has begun.

    `keep_alive` is sent whenever the client was sent nothing for 15 s (§7.2, §8.5); if empty,
    nothing is. `first` is when the first output came, by the monotonic clock; 0 before.
    """

    __slots__ = (
        "_client",
        "_done",
        "_keep_alive",
        "_last",
        "_loop",
        "_response",
        "_stream",
        "_timer",
        "first",
    )

    def __init__(
        self, response: Response, stream: LlmStream, client: Exchange, keep_alive: bytes
    ) -> None:
        self.first = 0.0
        self._response = response
        self._stream = stream
        self._client = client
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bytes] = self._loop.create_future()
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> bytes:
        """Pass the stream on; its last frames, which are not sent yet.

        Raises what `Response.take` and `LlmStream.feed` do.
        """
        self._response.on_event = self._client.on_drained = self._step
        if self._keep_alive:
            self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._look)
        try:
            self._step()
            if not self._done.done():
                # the head, where no frame went with it
                self._client.write(b"")
            return await self._done
        finally:
            self._response.on_event = None
            self._client.on_drained = ignore
            if self._timer is not None:
                self._timer.cancel()

    def _step(self) -> None:
        """Pass on what has come, unless the client is behind."""
        client, response, done = self._client, self._response, self._done
        try:
            stream = self._stream
            while not client.is_behind and not done.done():
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
                    self._last = self._loop.time()
                if not self.first and stream.text_bytes:
                    self.first = self._loop.time()
                if response.source is not None and not response.chunks:
                    # mostly nothing else has come meanwhile
                    return
        except Exception as error:
            # raised by `run`: the connection that calls this is not to end by it
            done.set_exception(error)

    def _look(self) -> None:
        """Send a keep-alive if it is time, and look again when the next one may be due."""
        now = self._loop.time()
        if now >= self._last + KEEP_ALIVE_SECONDS:
            # a client that takes nothing has the last one still before it
            if not self._client.is_behind:
                self._client.write(self._keep_alive)
            self._last = now
        self._timer = self._loop.call_at(self._last + KEEP_ALIVE_SECONDS, self._look)
