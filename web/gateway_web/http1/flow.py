"""Back-pressure in both directions of one connection."""

import asyncio

import structlog

_log = structlog.get_logger(__name__)


class Flow:
    """Pauses and resumes reading, and tells whether the client takes what is written.

    A client that takes none of the bytes that wait for it for `stall_seconds` is cut off.
    """

    def __init__(self, transport: asyncio.Transport, stall_seconds: float) -> None:
        self.is_behind = False
        """Whether written bytes still wait for the client."""
        self._transport = transport
        self._stall_seconds = stall_seconds
        self._is_reading_paused = False
        self._writable: asyncio.Event | None = None
        """Wakes tasks that wait to write; most connections never have one."""
        self._timer: asyncio.TimerHandle | None = None

    def pause_reading(self) -> None:
        """Read nothing more. Repeatable."""
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on. Repeatable."""
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    async def wait_writable(self) -> None:
        """Wait until the client has taken what was written, or has left."""
        while self.is_behind:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_writing(self) -> None:
        """Note that bytes wait for the client."""
        self.is_behind = True
        self._watch()

    def resume_writing(self) -> None:
        """Note that the client has taken everything, or has left. Repeatable."""
        self.is_behind = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        waiting = self._transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._stall_seconds, self._check_progress, waiting)

    def _check_progress(self, waiting: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left < waiting:
            self._watch()
            return
        _log.info("cut off", reason="the client takes nothing", bytes=left)
        self._transport.abort()
