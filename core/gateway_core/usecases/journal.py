"""Writing the usage journal: one of these in each process that takes calls which leave no object.

Records are buffered for less than a second, and stored together as one object; what is buffered or
under way is all that a process's death loses. An object that the store does not take is offered
again, the same bytes under the same key, for as long as the process lives; no other goes before it.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import structlog

from gateway_core.domain.journal import CallRecord, encode_object, name_object
from gateway_core.ports.objects import ObjectStore

PAUSE_SECONDS = 0.75
"""From one object to the next, so that with the store's own time it is less than a second."""
MOST_RECORDS = 5000
"""Records in one object, of some 300 bytes each."""
MOST_BUFFERED = 50_000
"""Records in memory; who has another one then waits."""
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

Listener = Callable[[Sequence[CallRecord], int], None]
"""Called with the records of an object and its number."""

_log = structlog.get_logger(__name__)


class JournalClosed(Exception):
    """The process is about to end: it takes no calls any more."""


def name_process(role: str, host: str) -> str:
    """A name that no other process ever has, which tells people which one it was."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{role}-{host}".lower()).strip("-")[:46].strip("-")
    return f"{words}-{secrets.token_hex(8)}"


class JournalWriter:
    """Takes records while `run` runs; for one event loop.

    `sent` is told of each object before it is offered to the store, `stored` after that has it.
    """

    def __init__(
        self,
        store: ObjectStore,
        process: str,
        *,
        sent: Listener = lambda _records, _sequence: None,
        stored: Listener = lambda _records, _sequence: None,
        pause_seconds: float = PAUSE_SECONDS,
        most_buffered: int = MOST_BUFFERED,
    ) -> None:
        self.process = process
        self._store = store
        self._sent = sent
        self._stored = stored
        self._pause = pause_seconds
        self._most = most_buffered
        self._buffer: deque[CallRecord] = deque()
        self._sending: tuple[CallRecord, ...] = ()
        self._sequence = 0
        self._changed = asyncio.Condition()
        self._closed = False

    @property
    def unsafe(self) -> int:
        """Records that a death of the process would lose."""
        return len(self._buffer) + len(self._sending)

    async def add(self, record: CallRecord) -> None:
        """Takes a record; waits while there are too many. JournalClosed."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self.unsafe < self._most)
            if self._closed:
                raise JournalClosed
            self._buffer.append(record)
            self._changed.notify_all()

    async def run(self) -> None:
        """Writes until cancelled, or until all is stored after `close`."""
        loop = asyncio.get_running_loop()
        written = float("-inf")
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._closed or self._buffer)
                if not self._buffer:
                    return
            if not self._closed and len(self._buffer) < MOST_RECORDS:
                await self._wait_full(written + self._pause - loop.time())
            written = loop.time()
            await self._write()

    async def close(self) -> None:
        """Takes no more; returns once everything is stored. `run` has to go on meanwhile."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
            await self._changed.wait_for(lambda: not self.unsafe)

    async def _wait_full(self, seconds: float) -> None:
        if seconds <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: self._closed or len(self._buffer) >= MOST_RECORDS
                )

    async def _write(self) -> None:
        """Stores one object; returns once it is known to be stored."""
        records = tuple(islice(self._buffer, MOST_RECORDS))
        for _ in records:
            self._buffer.popleft()
        self._sending = records
        self._sequence += 1
        self._sent(records, self._sequence)
        key = name_object(self.process, self._sequence)
        data = encode_object(self.process, self._sequence, records)
        attempt = 0
        while True:
            try:
                await self._store.put(key, data)
                break
            except Exception as error:  # whatever it is, the records are all that there is
                wait = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                _log.warning("journal not stored", key=key, error=str(error), records=self.unsafe)
                await asyncio.sleep(wait)
        self._stored(records, self._sequence)
        async with self._changed:
            self._sending = ()
            self._changed.notify_all()
