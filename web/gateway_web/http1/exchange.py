"""One request and its response on a connection of clients, for ASGI and for relayed streams.

The head of a response goes with the first bytes of its body, and a relay writes and learns of its
client's state by plain calls: ASGI messages cost a future and a wake-up each.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message

from gateway_web.context import Header
from gateway_web.http1.flow import Flow

_ENDED: Any = {}
_CLOSE: Header = (b"connection", b"close")
_HEAD_BYTES = b"\t\n\r" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
WITHOUT_BODY = frozenset({204, 304})
"""Statuses of responses without a body. 204 may have no length (RFC 9110, 8.6); that of a 304 would
be the length of the 200, which is not known here."""
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
STATUS_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b""))
    for status in range(100, 600)
}
_FAILED = b"Internal Server Error"
_FAILED_HEADERS: tuple[Header, ...] = ((b"content-type", b"text/plain; charset=utf-8"),)
EXCHANGE_KEY = "gateway.exchange"
"""Where the scope of a request has its `Exchange`."""

_log = logging.getLogger("uvicorn.error")


class Exchange:
    """A request on a connection and its response, by ASGI (`receive`, `send`) or by plain calls."""

    def __init__(
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: Flow,
        default_headers: list[Header],
        *,
        expects_continue: bool,
        keep_alive: bool,
        unread_bytes: int,
        on_end: Callable[[], None],
    ) -> None:
        self.scope = scope
        self.on_gone: Callable[[], None] = ignore
        """Called when the client has left before the end of its response."""
        self.on_drained: Callable[[], None] = ignore
        """Called when the client has taken what was written."""
        self.is_gone = False
        """Whether the client has left."""
        self.is_received = False
        """Whether the whole request has arrived, so that `receive` does not wait."""
        self.keep_alive = keep_alive
        self.response_started = self.response_complete = False
        self._transport = transport
        self._flow = flow
        self._default_headers = default_headers
        self._unread_bytes = unread_bytes
        self._on_end = on_end
        self._is_continued = not expects_continue
        """Whether the client sends the body without being asked to."""
        self._body: bytes | bytearray = b""
        self._event: asyncio.Event | None = None
        """Wakes a `receive` that waits; most requests never wait."""
        self._has_news = False
        self._head = b""
        self._is_in_pieces = False
        """Whether the length of the body is unknown: it is written in pieces."""
        self._is_framed = scope["http_version"] != "1.0"
        """Whether such pieces are chunks; HTTP/1.0 has none, and the connection ends the body."""
        self._left = 0
        """Bytes of the body that are still to be sent, by Content-Length."""

    async def run(self, app: ASGIApp, tasks: set[asyncio.Task[None]]) -> None:
        """Have `app` serve the request. An exception is logged and ends the connection.

        Removes the current task from `tasks` at the end: a done callback would cost one more turn
        of the event loop.
        """
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            _log.error("Exception in ASGI application", exc_info=error)
        else:
            if self.response_complete or self.is_gone:
                return
            _log.error("The ASGI application has not completed the response.")
        finally:
            # it belongs to the connection, which refers to this exchange
            self._on_end = ignore
            task: Any = asyncio.current_task()
            tasks.discard(task)
        if self.response_started:
            self._transport.close()
        elif not self.is_gone:
            self.keep_alive = False
            self.respond(500, _FAILED_HEADERS, _FAILED)

    # the request

    def add_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        if not self._body:
            # mostly it is the only one
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > self._unread_bytes:
            self._flow.pause_reading()
        self._notify()

    def end_body(self) -> None:
        """Note that the whole request has arrived."""
        self.is_received = True
        self._notify()

    def take_body(self) -> bytes | None:
        """Return the part of the body that was not received yet; None if the client has left."""
        if self.is_gone:
            return None
        self._flow.resume_reading()
        body, self._body = self._body, b""
        return bytes(body)

    async def receive(self) -> Message:
        """Return the next ASGI message: a part of the body, or `http.disconnect`."""
        if not self._is_continued and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._is_continued = True
        if not self.is_gone and not self.response_complete:
            self._flow.resume_reading()
            if not self._has_news:
                if self._event is None:
                    self._event = asyncio.Event()
                await self._event.wait()
        self._has_news = False
        if self._event is not None:
            self._event.clear()
        if self.is_gone or self.response_complete:
            return {"type": "http.disconnect"}
        body, self._body = self._body, b""
        return {"type": "http.request", "body": bytes(body), "more_body": not self.is_received}

    def _notify(self) -> None:
        self._has_news = True
        if self._event is not None:
            self._event.set()

    # the client

    @property
    def is_behind(self) -> bool:
        """True if earlier bytes still wait for the client: write no more."""
        return self._flow.is_behind

    def leave(self) -> None:
        """Note that the client has left."""
        if not self.response_complete:
            self.is_gone = True
            self._notify()
            self.on_gone()

    # the response

    def write(self, data: bytes) -> None:
        """Send bytes of a body of unknown length at once, with the head before the first of them.

        Empty bytes send the head alone.
        """
        if self.is_gone:
            return
        head, self._head = self._head, b""
        if not data or not self._is_framed:
            if head or data:
                self._transport.write(head + data)
            return
        self._transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole response at once; adds its length. Not while `is_behind`."""
        if self.is_gone:
            return
        self._check_begin()
        head = self._make_head(status, headers, None if status in WITHOUT_BODY else len(body))
        has_body = self.scope["method"] != "HEAD" and status not in WITHOUT_BODY
        self._transport.write(head + body if has_body else head)
        self._end()

    async def send(self, message: Any) -> None:
        """Send a part of the response, as ASGI has it."""
        if self._flow.is_behind and not self.is_gone:
            await self._flow.wait_writable()
        if self.is_gone:
            return
        if self.response_complete:
            raise RuntimeError("The response is complete.")
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"Expected the start of a response, not {message['type']}")
            self.begin(message["status"], message["headers"])
            return
        body = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            body, self._left = b"", 0
        if self._is_in_pieces:
            (self.finish if is_last else self.write)(body)
            return
        self._left -= len(body)
        if self._left < 0:
            raise RuntimeError("Response content longer than Content-Length")
        written, self._head = self._head + body, b""
        if written:
            self._transport.write(written)
        if is_last:
            self._end()

    def begin(self, status: int, headers: Iterable[Header]) -> None:
        """Begin the response, whose head goes with the first bytes of its body.

        Not while `is_behind`.
        """
        if self.is_gone:
            return
        self._check_begin()
        found = [*headers]
        length = dict(found).get(b"content-length")
        if length is not None:
            self._left = int(length)
        elif self.scope["method"] != "HEAD" and status not in WITHOUT_BODY:
            self._is_in_pieces = True
            if self._is_framed:
                found.append((b"transfer-encoding", b"chunked"))
        self._head = self._make_head(status, found)

    def finish(self, data: bytes) -> None:
        """Send the last bytes of a body of unknown length, and end it. Not while `is_behind`."""
        if self.is_gone:
            return
        if not self._is_in_pieces:
            raise RuntimeError("The length of the body is known.")
        if self._is_framed:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        written, self._head = self._head + data, b""
        if written:
            self._transport.write(written)
        self._end()

    def _check_begin(self) -> None:
        if self.response_started:
            raise RuntimeError("The response has begun.")

    def _make_head(
        self, status: int, headers: Iterable[Header], length: int | None = None
    ) -> bytes:
        """Return the bytes of the head, and mark the response as begun.

        `length` adds a Content-Length.
        """
        if not (self._is_continued or self._body) and not self.is_received:
            # the client waits for 100 Continue, and may send another request instead of the body
            self.keep_alive = False
        self.response_started = self._is_continued = True
        found = [*self._default_headers, *headers]
        lines = [STATUS_LINES[status], *[b"%b: %b\r\n" % header for header in found]]
        if length is not None:
            lines.append(b"content-length: %d\r\n" % length)
        if _CLOSE in found:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        # one look at all headers: none may have characters that end a line, or that no header has
        ends = len(lines)
        if (
            head.count(b"\n") != ends
            or head.count(b"\r") != ends
            or head.translate(None, _HEAD_BYTES)
        ):
            raise RuntimeError("Invalid HTTP header.")
        return head

    def _end(self) -> None:
        if self._left:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        if self._event is not None:
            self._event.set()
        # the scope has the exchange, and a cycle would wait for the garbage collector
        self.scope = _ENDED
        if not self.keep_alive:
            self._transport.close()
        on_end, self._on_end = self._on_end, ignore
        on_end()


def ignore() -> None:
    """Default of the callbacks."""
