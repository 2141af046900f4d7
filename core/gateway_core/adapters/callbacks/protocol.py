"""How much of what a receiver sends is taken in, whatever it is.

aiohttp bounds a header and lets its user bound the body; informational answers (1xx) it reads
without an end, and a flood of them is parsed without the loop ever turning.
"""

import asyncio

from aiohttp.client_proto import ResponseHandler

SLICE = 4096
MOST_MESSAGES = 16
"""Answers that may wait unread on a connection that has one request: a few 1xx and the one."""


class BoundedHandler(ResponseHandler):
    """A connection for one request, cut off once `most` bytes have come.

    What has been read by then counts: an answer whose body is longer is an answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        super().__init__(loop)
        self._left = most

    def data_received(self, data: bytes) -> None:
        """Parses a little at a time, and no more than there is room for."""
        if not data:
            super().data_received(data)  # aiohttp's own sign to go on with what it has
            return
        for begin in range(0, min(len(data), self._left), SLICE):
            super().data_received(data[begin : begin + SLICE])
            if len(self._buffer) > MOST_MESSAGES:
                self._left = 0
                break
        self._left -= min(len(data), self._left)
        if self._left == 0 and self.transport is not None:
            self.transport.abort()
