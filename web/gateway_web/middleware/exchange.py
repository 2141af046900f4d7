"""One request and its response on a connection of clients, for ASGI and for relayed streams.

uvicorn writes the head of a response by itself, and its ASGI messages cost a future and a wake-up
each. Here the head goes with the first bytes of the body, and a relay writes and learns of its
client's state by plain calls.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    RequestResponseCycle,
)

from gateway_web.context import Header

_ENDED: Any = {}
_HEAD_BYTES = b"\t\n\r" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
EXCHANGE_KEY = "gateway.exchange"
"""Where the scope of a request has its `ClientExchange`."""


class ClientExchange(Protocol):
    """What bodies and relays need of a client beside ASGI."""

    on_gone: Callable[[], None]
    """Called when the client has left before the end of its response."""
    on_drained: Callable[[], None]
    """Called when the client has taken what was written."""

    @property
    def is_received(self) -> bool:
        """Whether the whole request has arrived, so that `receive` does not wait."""
        ...

    def take_body(self) -> bytes | None:
        """What has arrived of the body and was not received yet; None if the client has left."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether the client has not taken yet what was written: write no more."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes of the body of a response that has begun, at once; none send its head."""
        ...

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole response at once, of the Content-Length in `headers`; not while the client
        is behind, and not for a HEAD."""
        ...


class Exchange(RequestResponseCycle):
    """uvicorn's exchange, with the interface of `ClientExchange`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.on_gone: Callable[[], None] = ignore
        self.on_drained: Callable[[], None] = ignore
        self._head = b""

    @property
    def is_received(self) -> bool:
        """Whether the whole request has arrived, so that `receive` does not wait."""
        return not self.more_body

    def take_body(self) -> bytes | None:
        """What has arrived of the body and was not received yet; None if the client has left."""
        if self.disconnected:
            return None
        body, self.body = self.body, bytearray()
        return bytes(body)

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        return self.disconnected

    @property
    def is_behind(self) -> bool:
        """Whether the client has not taken yet what was written."""
        return bool(self.flow.write_paused)

    def write(self, data: bytes) -> None:
        """Send bytes of a chunked body, with the head before the first of them."""
        if self.disconnected:
            return
        head, self._head = self._head, b""
        if data:
            self.transport.write(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        elif head:
            self.transport.write(head)

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Send a whole response."""
        if self.disconnected:
            return
        if self.response_started:
            raise RuntimeError("The response has begun.")
        self._begin(status, headers)
        if self.expected_content_length != len(body):
            raise RuntimeError("Response content of another length than Content-Length")
        head, self._head, self.expected_content_length = self._head, b"", 0
        self.transport.write(head + body)
        self._end()

    def leave(self) -> None:
        """Note that the client has left."""
        if not self.response_complete:
            self.disconnected = True
            self.message_event.set()
            self.on_gone()

    async def send(self, message: Any) -> None:
        """Send a part of the response, as ASGI has it."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError("The response is complete.")
        if not self.response_started:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"Expected the start of a response, not {message['type']}")
            self._begin(message["status"], message["headers"])
            return
        body = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if self.scope["method"] == "HEAD":
            body, self.expected_content_length = b"", 0
        head, self._head = self._head, b""
        if self.chunked_encoding and self.scope["method"] != "HEAD":
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            written = b"%b%b%b" % (head, chunk, b"0\r\n\r\n" if is_last else b"")
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("Response content longer than Content-Length")
            written = head + body if head else body
        if written:
            self.transport.write(written)
        if is_last:
            self._end()

    def _begin(self, status: int, headers: Iterable[Header]) -> None:
        """Keep the head for the first bytes of the body."""
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status]]
        is_closed = False
        for name, value in (*self.default_headers, *headers):
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and value == b"close":
                self.keep_alive, is_closed = False, True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive and not is_closed:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        if self.chunked_encoding is None and has_body:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        # one look at all headers: none may have characters that end a line, or that no header has
        ends = head.count(b"\n"), head.count(b"\r")
        if ends != (len(lines), len(lines)) or head.translate(None, _HEAD_BYTES):
            raise RuntimeError("Invalid HTTP header.")
        self._head = head

    def _end(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("Response content shorter than Content-Length")
        self.response_complete = True
        self.message_event.set()
        # the scope has the exchange, and a cycle would wait for the garbage collector
        self.scope = _ENDED
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def ignore() -> None:
    """Default of the callbacks."""
