"""The holds of calls that leave no object, seen to by the process that has the calls.

A call's hold is in the counters only, so nobody else can bring it back once they are emptied, and
nobody else knows that it is still wanted. This keeps holds young while their calls go on, takes
those again that a rebuild could not know of, and sees each ended call charged once.

An ended call is settled at once and its record given to the journal. Between that and the moment at
which the record is stored, the counters may be lost and rebuilt without it; so it is looked at once
more then. Charged or not follows from three things that are read in an order in which no rebuild
can come between: the hold is taken first, then it is asked how far the last rebuild found this
process's journal, and the charge uses up the hold, which no rebuild brings back. Where the journal
was found up to the record or beyond, the record is in the sums, and the hold is released.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from gateway_core.domain.journal import CallRecord
from gateway_core.ports.counters import (
    CallState,
    Counters,
    CountersStale,
    CountersUnavailable,
    Hold,
)
from gateway_core.ports.objects import ObjectStore
from gateway_core.ports.records import RecordError
from gateway_core.usecases.journal import JournalWriter

KEEP_SECONDS = 20.0
"""A hold is taken for one that nobody has after 120 s."""
RETRY_SECONDS = 0.5
_ATTEMPTS = 4

_log = structlog.get_logger(__name__)

Rebuild = Callable[[str], Awaitable[bool]]
"""Rebuilds an account's money; False where another is at it."""


@dataclass(slots=True)
class _Call:
    account: str
    hold: Hold
    record: CallRecord | None = None
    sequence: int | None = None
    stored: bool = False
    settled: bool = False


class LiveHolds:
    """The calls of this process, and its journal, while `run` runs. For one event loop."""

    def __init__(
        self, counters: Counters, rebuild: Rebuild, store: ObjectStore, process: str
    ) -> None:
        self.journal = JournalWriter(store, process, sent=self._note_sent, stored=self._note_stored)
        self._counters = counters
        self._rebuild = rebuild
        self._calls: dict[str, _Call] = {}
        # accounts to be seen to, and whether for the calls that go on, too
        self._due: dict[str, bool] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, account: str, hold: Hold) -> None:
        """Has a call, whose hold stands, seen to until `end`."""
        self._calls[hold.task] = _Call(account, hold)

    async def end(self, record: CallRecord) -> None:
        """Settles an ended call and gives its record to the journal; waits where that is full.

        Does not fail for want of the counters: `run` sees to it then. JournalClosed.
        """
        call = self._calls[record.call]
        call.record = record
        try:
            call.settled = await self._settle(call, record.micros)
        except (CountersUnavailable, CountersStale) as error:
            _log.info("call not settled yet", call=record.call, error=type(error).__name__)
        await self.journal.add(record)

    async def retake(self, account: str) -> None:
        """Takes the account's holds again after its money was rebuilt. What `counters` raises."""
        await self._see_to(account, live=True)

    async def run(self) -> None:
        """Writes the journal and sees to calls until cancelled, whatever fails."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.journal.run())
            group.create_task(self._run_looks())

    async def close(self) -> None:
        """Takes no more ended calls; returns once what they cost is stored. `run` has to go on.

        What the counters do not take now is counted by their next rebuild.
        """
        await self.journal.close()
        for account in {call.account for call in self._calls.values()}:
            await self._try(account, live=False)

    async def _run_looks(self) -> None:
        loop = asyncio.get_running_loop()
        next_keep = loop.time() + KEEP_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(next_keep):
                    await self._wake.wait()
            except TimeoutError:
                self._due.update((call.account, True) for call in self._calls.values())
                next_keep = loop.time() + KEEP_SECONDS
            self._wake.clear()
            due, self._due = self._due, {}
            for account, live in due.items():
                if not await self._try(account, live=live):
                    self._due[account] = True
            if self._due:
                loop.call_later(RETRY_SECONDS, self._wake.set)

    async def _try(self, account: str, *, live: bool) -> bool:
        """Sees to an account's calls; whether that could be done."""
        try:
            try:
                await self._see_to(account, live=live)
            except CountersStale:
                if not await self._rebuild(account):
                    return False
                await self._see_to(account, live=True)
        except (CountersUnavailable, CountersStale, RecordError) as error:
            _log.info("holds of calls not seen to", account=account, error=type(error).__name__)
            return False
        except Exception:  # the boundary: one odd account must not end what others need
            _log.exception("holds of calls not seen to", account=account)
            return False
        return True

    async def _see_to(self, account: str, *, live: bool) -> None:
        calls = [
            call
            for call in self._calls.values()
            if call.account == account and (live or call.record is not None)
        ]
        names = [call.hold.task for call in calls]
        kept = await self._counters.keep(account, self.journal.process, names)
        for call, state in zip(calls, kept.states, strict=True):
            if call.record is None:
                if state == "gone":
                    await self._counters.hold(account, call.hold)
                continue
            if not await self._count(call, state, kept.counted):
                # the counters are lost all the time; it is looked at again
                self._due.setdefault(account, True)
                continue
            if call.stored:
                self._calls.pop(call.hold.task, None)

    async def _count(self, call: _Call, state: CallState, counted: int) -> bool:
        """Whether what an ended call costs is known to be in the counters."""
        assert call.record is not None
        micros = call.record.micros
        for _ in range(_ATTEMPTS):
            if state == "charged":
                return True
            included = call.sequence is not None and call.sequence <= counted
            if state == "gone":
                if included or micros == 0:
                    return True
                await self._counters.hold(call.account, call.hold)
            elif await self._settle(call, 0 if included else micros):
                return True
            name = call.hold.task
            kept = await self._counters.keep(call.account, self.journal.process, [name])
            state, counted = kept.states[0], kept.counted
        return False

    async def _settle(self, call: _Call, micros: int) -> bool:
        assert call.record is not None
        time = call.record.time
        return await self._counters.settle(call.account, call.hold.task, micros, time)

    def _note_sent(self, records: Sequence[CallRecord], sequence: int) -> None:
        for record in records:
            if record.call in self._calls:
                self._calls[record.call].sequence = sequence

    def _note_stored(self, records: Sequence[CallRecord], sequence: int) -> None:
        for record in records:
            call = self._calls.get(record.call)
            if call is None:
                continue
            call.stored = True
            if call.settled and record.micros == 0:
                del self._calls[record.call]
            else:
                self._due.setdefault(record.account, False)
        self._wake.set()
