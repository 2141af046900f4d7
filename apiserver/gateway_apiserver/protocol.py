"""HTTP/1.1 as uvicorn speaks it, for what never becomes a request; used by `server` alone.

Bytes that are no HTTP are answered like everything else, with a request id (contract §0.8), and the
head of a request is bounded: nobody may fill the memory before he is asked for his key. Nor may
anybody hold what he is sent for ever.
"""

import asyncio

import orjson
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway_core.contract.ids import mint_request_id

MOST_HEAD_BYTES = 64 * 1024
MOST_DRAINED_BYTES = 4 * 1024 * 1024
"""Of a body that was answered before its end: read on, as a client that is still sending may not
see the answer otherwise, and then no further."""

STALL_SECONDS = 300.0
"""How long a client may take none of what is ready for it, beyond what the kernel holds.

The kernel asks for more once a good part of its buffers is sent, which is megabytes: for a client
that takes 16 KiB a second every 90 s, and for the slowest that are served, of 8 KiB, every 180 s.
"""

_log = structlog.get_logger(__name__)


class Protocol(HttpToolsProtocol):
    """One connection."""

    _in_head = True
    _head_bytes = 0
    _drained_bytes = 0
    _stall: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends with the connection."""
        self._end_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Has the application wait for its client, and the client's patience measured."""
        super().pause_writing()
        self._watch_stall(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Has the application go on."""
        self._end_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Takes in what has come, and refuses a head that does not end."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(431, "Request Header Fields Too Large", "The headers are too large.")

    def on_headers_complete(self) -> None:
        """Notes that the head has ended."""
        self._in_head, self._head_bytes, self._drained_bytes = False, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes in more of a body; closes where nobody wants it and there is too much of it."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._drained_bytes += len(body)
            if self._drained_bytes > MOST_DRAINED_BYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        """Notes that the next head may come."""
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP."""
        self._refuse(400, "Bad Request", "The request is not valid HTTP.")

    def _watch_stall(self, waiting: int) -> None:
        self._stall = self.loop.call_later(STALL_SECONDS, self._check_stall, waiting)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _check_stall(self, waiting: int) -> None:
        """Cuts a client off that has taken none of the bytes that were waiting."""
        left = self.transport.get_write_buffer_size()
        if left < waiting:
            self._watch_stall(left)
            return
        _log.info("cut off", reason="the client takes nothing", bytes=left)
        self.transport.abort()

    def _refuse(self, status: int, phrase: str, text: str) -> None:
        transport: asyncio.Transport | None = self.transport
        if transport is None or transport.is_closing():
            return
        request_id, body = mint_request_id(), orjson.dumps({"error": text})
        head = (
            f"HTTP/1.1 {status} {phrase}\r\n"
            "content-type: application/json\r\n"
            "cache-control: no-store\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        transport.close()
        _log.info("refused", request_id=request_id, status=status)
