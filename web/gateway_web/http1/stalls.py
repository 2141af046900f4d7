"""Time limit of clients that do not read their responses."""

import asyncio

import structlog

_log = structlog.get_logger(__name__)


class StallWatch:
    """Aborts a connection whose client reads none of the waiting bytes for `seconds`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float
    ) -> None:
        self._loop, self._transport, self._seconds = loop, transport, seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch from now on."""
        self.end()
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check, waiting)

    def end(self) -> None:
        """Watch no longer. Repeatable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, waiting: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left < waiting:
            self.begin()
            return
        _log.info("cut off", reason="the client takes nothing", bytes=left)
        self._transport.abort()
