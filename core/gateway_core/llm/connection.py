"""One HTTP/1.1 connection to an upstream, and the response that is read from it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from gateway_core.concurrency import GRACE_SECONDS, LATE_SECONDS
from gateway_core.llm.response import CUT, Response
from gateway_core.providers.upstream import (
    UpstreamError,
    UpstreamInterrupted,
    UpstreamSilent,
    UpstreamTimedOut,
    UpstreamUnclear,
)

MOST_HEAD_BYTES = 64 * 1024
"""Bytes of a head, of trailers, or of anything else between two pieces of a body."""
READ_BYTES = 16 * 1024
"""Received at once, into a buffer of the connection's own: as much as a TLS record has."""
HIGH_WATER = 128 * 1024
"""Unread bytes of a response beyond which the connection is not read: at most 256 KiB are held of
it, with the last piece and what waits for TLS."""
WRITE_BYTES = 64 * 1024
"""A request body beyond this size is written in pieces, as the upstream takes them."""

_LATE = "The provider did not answer in time."
_UNREADABLE = "The provider's response cannot be read."


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for a connection (with DNS and TLS), for the head of a response, and between bytes.

    The time for the head begins when the request is sent. `idle` also holds while a request body is
    sent, and not while the response's reader is behind (contract §7.4).
    """

    connect: float = 10.0
    head: float = 120.0
    idle: float = 120.0


class ClosedUnanswered(UpstreamUnclear):
    """The upstream closed a kept connection without a byte of an answer, probably before it read
    the request."""


class _NotAskedFor(Exception):
    """Raised inside the parser: HTTP, but not a response to this request."""


class Connection(asyncio.BufferedProtocol):
    """One connection, used for one exchange after the other.

    `on_free` is called when the next exchange may begin, `on_lost` when the connection has ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_free: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.free_since = 0.0
        """The loop's time when the last response was whole."""
        self.is_paused = False
        self._loop = loop
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._on_free = on_free
        self._on_lost = on_lost
        # a callback of our own for each chunk of a stream would cost as much as all else
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._timeouts = Timeouts()
        self._served = 0
        self._is_sending = False
        self._is_write_paused = False
        self._may_stay = False
        self._ends_at_eof = False
        self._quiet_bytes = 0
        """Received since the request was sent, or since the parser last gave out a piece of body.
        The parser keeps an unfinished header to itself."""
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return not self.transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, timeouts: Timeouts) -> Response:
        """Send a request and wait for the head of its response.

        Closes the connection where it raises or is cancelled. Raises ClosedUnanswered,
        UpstreamTimedOut or UpstreamUnclear.
        """
        response = self._response = Response(self._loop, self)
        self._timeouts = timeouts
        self._is_sending = self._may_stay = False
        self._quiet_bytes = 0
        try:
            if len(body) <= WRITE_BYTES:
                self.transport.write(head + body)
            else:
                await self._send_in_pieces(response, head, body)
            if not response.status:
                self._allow(timeouts.head)
                await response.wait_for_head()
        except BaseException:
            response.abort()
            raise
        return response

    def resume(self) -> None:
        """Read on: the reader has caught up."""
        self.is_paused = False
        self.transport.resume_reading()
        self._allow(self._timeouts.idle)

    def fail(self, error: UpstreamError) -> None:
        """Close the connection at once; the response under way ends with `error`."""
        response, self._response = self._response, None
        self.transport.abort()
        if response is not None:
            response.end(error)

    def close(self) -> None:
        """Close a free connection."""
        self.transport.abort()

    async def _send_in_pieces(self, response: Response, head: bytes, body: bytes) -> None:
        """Send a large request as the upstream takes it, and no further once it is refused."""
        self._is_sending = True
        self.transport.write(head)
        self._allow(self._timeouts.idle)
        view, sent = memoryview(body), 0
        while sent < len(body) and response.source is not None and response.status < 300:
            if self._is_write_paused:
                await response.wait()
                continue
            self.transport.write(view[sent : sent + WRITE_BYTES])
            sent += WRITE_BYTES
            self._allow(self._timeouts.idle)
        self._is_sending = sent < len(body)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to receive."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what has arrived."""
        response = self._response
        if response is None:
            # an answer without a request must not become that of the next one
            self.transport.abort()
            return
        self._quiet_bytes += nbytes
        is_readable, pieces = True, self._pieces
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            is_readable = False
        if pieces:
            self._quiet_bytes = 0
            response.chunks += pieces
            response.size += sum(map(len, pieces))
            pieces.clear()
        if not is_readable:
            self._may_stay = False
            self._break(_UNREADABLE)
        if self._response is None:
            response.wake()
            if self._may_stay:
                self.free_since = self._loop.time()
                self._on_free(self)
            else:
                self.transport.abort()
            return
        if self._quiet_bytes > MOST_HEAD_BYTES:
            self._break(_UNREADABLE)
            return
        if response.status:
            if response.size > HIGH_WATER:
                self.is_paused = True
                self.transport.pause_reading()
            self._allow(self._timeouts.idle)
            response.wake()

    def eof_received(self) -> None:
        """End a response that lasts as long as its connection; others end in `connection_lost`."""
        response = self._response
        if response is not None and response.status and self._ends_at_eof:
            self._response = None
            response.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._response is not None:
            if self._served and not self._quiet_bytes and not self._response.status:
                self.fail(ClosedUnanswered(CUT))
            else:
                self._break(CUT)
        self._on_lost(self)

    def pause_writing(self) -> None:
        """The upstream is slower than the request."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """The upstream has taken what was sent."""
        self._is_write_paused = False
        if self._response is not None:
            self._response.wake()

    # httptools

    def on_message_begin(self) -> None:
        """A head begins; a second response to one request does not belong to any."""
        if self._response is None:
            raise _NotAskedFor

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are ignored."""
        response = self._response
        if response is not None and not response.status:
            # not tabs: the parser takes a coding with a tab behind it for another one
            response.headers[name.lower()] = value.rstrip(b" ")

    def on_headers_complete(self) -> None:
        """The response begins, unless it is an interim one (1xx)."""
        response = self._response
        assert response is not None
        status, headers = self._parser.get_status_code(), response.headers
        if status < 200:
            headers.clear()
            return
        coding = headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise _NotAskedFor
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise _NotAskedFor
        self._ends_at_eof = coding is None and b"content-length" not in headers
        response.status = status

    def on_message_complete(self) -> None:
        """The response is whole, and the connection may serve the next request."""
        response = self._response
        assert response is not None
        if response.status:
            self._served += 1
            self._may_stay = self._parser.should_keep_alive() and not self._is_sending
            self._response = response.source = None

    def _break(self, text: str) -> None:
        response = self._response
        if response is not None:
            kind = UpstreamInterrupted if response.status else UpstreamUnclear
            self.fail(kind(text))

    def _allow(self, seconds: float) -> None:
        """Let the upstream take so long for its next step.

        The timer stays where it fires before that: most steps end sooner, and a timer costs more
        than a comparison.
        """
        self._deadline = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        timer, self._timer = self._timer, None
        if timer is None or self._response is None or self.is_paused:
            return
        now = self._loop.time()
        if now < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif now - timer.when() > LATE_SECONDS:
            # this process was paused, and the answer may have arrived
            self._timer = self._loop.call_later(GRACE_SECONDS, self._check_deadline)
        else:
            self.fail(UpstreamTimedOut(_LATE) if self._is_sending else UpstreamSilent(_LATE))
