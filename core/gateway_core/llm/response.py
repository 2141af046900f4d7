"""The response to a request to an upstream, while its connection receives it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway_core.providers.upstream import UpstreamError, UpstreamInterrupted, UpstreamUnclear

CUT = "The connection to the provider broke off."
_TOO_LONG = "The provider's response is too long."


class Source(Protocol):
    """The connection, as its response sees it."""

    is_paused: bool

    def resume(self) -> None:
        """Read on: the reader has caught up."""
        ...

    def fail(self, error: UpstreamError) -> None:
        """Close the connection at once; the response ends with `error`."""
        ...


class Response:
    """A response whose head has arrived; one task reads it, and calls `abort` in the end.

    `headers` has lower-case names; of repeated headers, the last. A response of a status below 200
    never gets here. Its connection adds to `chunks` and `size`, the bytes that are not taken yet,
    and sets `source` to None at the end.
    """

    __slots__ = (
        "_error",
        "_loop",
        "_waiter",
        "chunks",
        "headers",
        "on_event",
        "size",
        "source",
        "status",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Source) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.on_event: Callable[[], None] | None = None
        """Called when there is something to `take`, or the response has ended; `read_some` and
        `read` are not for a response that has it."""
        self._loop = loop
        self.source: Source | None = connection
        self.chunks: list[bytes] = []
        self.size = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read_some(self) -> bytes:
        """Bytes of the body that have arrived, at least one; empty at its end.

        Raises UpstreamSilent or UpstreamInterrupted where the rest does not come.
        """
        while not self.chunks:
            if self.source is None:
                if self._error is not None:
                    raise self._error
                return b""
            await self.wait()
        return self.take()

    @property
    def is_whole(self) -> bool:
        """Whether the response has ended without an error, and all of it was taken."""
        return self.source is None and self._error is None and not self.chunks

    def take(self) -> bytes:
        """Bytes of the body that have arrived; empty where none have.

        Raises as `read_some` once all was taken.
        """
        chunks = self.chunks
        if not chunks:
            if self._error is not None:
                raise self._error
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks = []
        self.size = 0
        if self.source is not None and self.source.is_paused:
            self.source.resume()
        return data

    async def read(self, limit: int) -> bytes:
        """Return the rest of the body.

        Raises UpstreamUnclear, and aborts, beyond `limit` bytes; else as `read_some`.
        """
        pieces, size = [], 0
        while piece := await self.read_some():
            size += len(piece)
            if size > limit:
                self.abort()
                raise UpstreamUnclear(_TOO_LONG)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def wait_for_body(self) -> None:
        """Wait for the first byte of the body, or for its end. Raises as `read_some`."""
        while self.source is not None and not self.chunks:
            await self.wait()
        if not self.chunks and self._error is not None:
            raise self._error

    def abort(self) -> None:
        """Close the connection, unless the response has arrived whole. Repeatable."""
        if self.source is not None:
            self.source.fail(UpstreamInterrupted(CUT))

    async def wait_for_head(self) -> None:
        """Wait until `status` is known. Raises the error of a connection that ends before."""
        try:
            while not self.status:
                if self._error is not None:
                    raise self._error
                # as `wait`, without a coroutine of its own
                self._waiter = self._loop.create_future()
                await self._waiter
        finally:
            self._waiter = None

    async def wait(self) -> None:
        """Return after the next event of the connection."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Tell the reader that something has come."""
        if self.on_event is not None:
            self.on_event()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: UpstreamError | None = None) -> None:
        """The response is whole, or fails with `error` after what has arrived of it."""
        self.source = None
        self._error = error
        self.wake()
