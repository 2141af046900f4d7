"""Back-pressure in both directions of one connection."""

import asyncio

MOST_UNREAD_BYTES = 64 * 1024
"""Of a body that the application does not read: beyond it the connection is not read either."""


class Flow:
    """Whether a connection is read, and whether its client takes what is written."""

    __slots__ = ("_is_reading_paused", "_transport", "_writable", "is_behind")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.is_behind = False
        """Whether written bytes still wait for the client."""
        self._transport = transport
        self._is_reading_paused = False
        self._writable: asyncio.Event | None = None
        """Wakes those that wait to write; most connections never wait."""

    async def wait_writable(self) -> None:
        """Wait until the client has taken what was written, or has left."""
        if self._writable is None:
            self._writable = asyncio.Event()
        if self.is_behind:
            await self._writable.wait()

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

    def pause_writing(self) -> None:
        """The client takes less than is written."""
        self.is_behind = True
        if self._writable is not None:
            self._writable.clear()

    def resume_writing(self) -> None:
        """The client has taken everything, or has left."""
        self.is_behind = False
        if self._writable is not None:
            self._writable.set()
