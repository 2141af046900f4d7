"""Writing the usage journal: one of these in each process that takes calls which leave no object.

Records are buffered and stored together as one object; what is buffered or under way is all that a
process's death loses. That is less than a second's calls while a put takes less than half of one:
the pause is shorter by what puts take of late. With slower ones it is what ended in the time of
two, as the next begins only when the last is known to be stored. An object that the store does not
take is offered again, the same bytes under the same key, for as long as the process lives; no other
goes before it.
"""

import asyncio
import re
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import structlog

from gateway_core.concurrency import back_off
from gateway_core.domain.journal import CallRecord, encode_object, name_object
from gateway_core.ports.objects import ObjectStore

PAUSE_SECONDS = 0.75
"""From the begin of one object to that of the next, at most."""
RISK_SECONDS = 0.95
"""How old a record may become until it is stored: a pause and a put together."""
MOST_RECORDS = 5000
"""Records in one object, of some 300 bytes each."""
MOST_BUFFERED = 50_000
"""Records in memory; who gives one beyond that waits before it goes on to its next call."""
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0

Listener = Callable[[Sequence[CallRecord], int], None]
"""Called with the records of an object and its number."""

_log = structlog.get_logger(__name__)


class JournalClosed(Exception):
    """The journal takes nothing any more; what the call has cost is recorded nowhere."""


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
        self._put_seconds = 0.0
        # set at once with what they tell of, so that no cancellation comes between
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        self._stored_some = asyncio.Condition()
        self._closed = False

    @property
    def unsafe(self) -> int:
        """Records that a death of the process would lose."""
        return len(self._buffer) + len(self._sending)

    def add(self, record: CallRecord) -> None:
        """Takes a record at once, however many there are. JournalClosed."""
        if self._closed:
            _log.error("a call ended too late", call=record.call, lost_micros=record.micros)
            raise JournalClosed(record.call)
        self._buffer.append(record)
        self._some.set()
        if len(self._buffer) >= MOST_RECORDS:
            self._enough.set()

    async def wait_for_room(self) -> None:
        """Returns once there are not too many; who has given a record waits here for the store."""
        async with self._stored_some:
            await self._stored_some.wait_for(lambda: self.unsafe <= self._most)

    async def run(self) -> None:
        """Writes until cancelled, or until all is stored after `close`.

        Called again after it has raised it goes on with the object that it was storing.
        """
        loop = asyncio.get_running_loop()
        begun = float("-inf")
        if self._sending:
            await self._offer()
        while True:
            await self._some.wait()
            if not self._buffer:
                return
            pause = min(self._pause, RISK_SECONDS - self._put_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(begun + pause):
                    await self._enough.wait()
            begun = loop.time()
            await self._write()
            # a quick one among slow ones is no reason to wait longer
            took = min(loop.time() - begun, RISK_SECONDS)
            self._put_seconds = max(took, self._put_seconds * 0.8)

    async def close(self) -> None:
        """Takes no more; returns once everything is stored. `run` has to go on meanwhile."""
        self._closed = True
        self._some.set()
        self._enough.set()
        async with self._stored_some:
            await self._stored_some.wait_for(lambda: not self.unsafe)

    async def _write(self) -> None:
        """Stores one object; returns once it is known to be stored."""
        records = tuple(islice(self._buffer, MOST_RECORDS))
        for _ in records:
            self._buffer.popleft()
        if not self._closed:
            if not self._buffer:
                self._some.clear()
            if len(self._buffer) < MOST_RECORDS:
                self._enough.clear()
        self._sending = records
        self._sequence += 1
        await self._offer()

    async def _offer(self) -> None:
        """Stores what is being sent; to do it twice stores the same bytes under the same key."""
        records = self._sending
        self._sent(records, self._sequence)
        key = name_object(self.process, self._sequence)
        data = encode_object(self.process, self._sequence, records)
        attempt = 0
        while True:
            try:
                await self._store.put(key, data)
                break
            except Exception as error:  # whatever it is, the records are all that there is
                attempt += 1
                _log.warning("journal not stored", key=key, error=str(error), records=self.unsafe)
                await asyncio.sleep(back_off(attempt, first=FIRST_SECONDS, longest=LONGEST_SECONDS))
        self._stored(records, self._sequence)
        async with self._stored_some:
            self._sending = ()
            self._stored_some.notify_all()
