"""The response to one request: JSON, or an event stream that begins with its first event.

A stream has one event for each message (`event: message`, one line of data, no id), comments as
heartbeats, and ends after the response (contract §10.2).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from gateway_mcpserver.protocol.messages import render_notification
from gateway_web.context import Header
from gateway_web.responses import JSON, NO_STORE, Response, send_head, send_response

HEARTBEAT_SECONDS = 10.0
"""A stream has a comment at least this often; proxies cut silent ones."""
STREAM_AFTER_SECONDS = 5.0
"""A response that takes longer, from the start of its request, becomes a stream."""
_HEARTBEAT = b": ping\n\n"
STREAM_HEADERS: Sequence[Header] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Reply:
    """Sends the messages of one response; made when its request begins.

    `next_beat` is the time of the loop by which the client has to be sent something. A client that
    takes no streams (`may_stream`) gets JSON at the end, and nothing before it.
    """

    __slots__ = ("_clock", "_send", "_streams", "may_stream", "next_beat")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streams = False
        self.may_stream = True
        self._clock = asyncio.get_running_loop().time
        self.next_beat = self._clock() + STREAM_AFTER_SECONDS

    async def beat(self) -> None:
        """Send a comment."""
        await self._write(_HEARTBEAT)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        await self._write(_to_event(render_notification(method, params)))

    async def finish(self, message: bytes, status: int = 200) -> None:
        """Send the response, in the form that has begun; `status` is that of JSON."""
        if not self._streams:
            await send_response(self._send, Response(status, message, (JSON, NO_STORE)))
            return
        body = _to_event(message)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _write(self, data: bytes) -> None:
        self.next_beat = self._clock() + HEARTBEAT_SECONDS
        if not self.may_stream:
            return
        if not self._streams:
            self._streams = True
            await send_head(self._send, 200, STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _to_event(message: bytes) -> bytes:
    # JSON escapes every line end within it
    return b"event: message\ndata: %b\n\n" % message
