"""Holds of calls without an object, maintained by the process that serves the calls.

Such a hold is in the counters alone, so no other process can restore it once they are lost, or
knows that it is still needed. This module resets the age of holds while their calls run, restores
holds that a rebuild could not know of, and settles each ended call exactly once.

The record of an ended call is given to the journal before any await, and the call is settled at
once. Until the record is stored the counters may be lost and rebuilt without it, so the call is
checked once more after that. Whether it is charged follows from three steps whose order leaves no
gap for a rebuild: the hold is taken first, then the last rebuild's position in this process's
journal is read, then the charge uses up the hold, which no rebuild restores. A position at or
beyond the record means that the sums include it, and the hold is released. Each call has a lock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from gateway_core.billing.counters import CallState, Hold
from gateway_core.billing.journal import CallRecord, JournalWriter
from gateway_core.billing.redis_counters import Counters
from gateway_core.concurrency import Supervisor
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import ObjectStore

KEEP_SECONDS = 20.0
"""The sweeper releases a hold without an object after 120 s."""
RETRY_SECONDS = 0.5
_ATTEMPTS = 4
_ACCOUNTS_AT_ONCE = 8
_REBUILDS_AT_ONCE = 4

_log = structlog.get_logger(__name__)

Rebuild = Callable[[str], Awaitable[bool]]
"""Rebuilds an account's money; False where another replica does so."""


@dataclass(slots=True)
class _Call:
    account: str
    hold: Hold
    record: CallRecord | None = None
    sequence: int | None = None
    stored: bool = False
    settled: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class CallReservations:
    """Holds of this process's calls, and its journal, while `run` runs. For one event loop."""

    def __init__(
        self,
        counters: Counters,
        rebuild: Rebuild,
        store: ObjectStore,
        process: str,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self.journal = JournalWriter(store, process, sent=self._note_sent, stored=self._note_stored)
        self._counters = counters
        self._rebuild = rebuild
        self._calls: dict[str, _Call] = {}
        # accounts to reconcile, and whether their unfinished calls are included
        self._due: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._looks = asyncio.Semaphore(_ACCOUNTS_AT_ONCE)
        self._rebuilds = asyncio.Semaphore(_REBUILDS_AT_ONCE)
        self._rebuilding: set[str] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, account: str, hold: Hold) -> None:
        """Maintain the existing hold of a call until `end`."""
        self._calls[hold.task] = _Call(account, hold)

    async def end(self, record: CallRecord) -> None:
        """Give an ended call's record to the journal and settle the call.

        The record is added before the first await, so a cancelled caller loses nothing: `run`
        retries the rest, also while the counters are unavailable. It waits for the counters and for
        room in the journal, so surfaces call it in a task of its own or shielded. Idempotent while
        the call is known. KeyError for an unknown call; JournalClosed after `close`.
        """
        call = self._calls[record.call]
        if call.record is None:
            self.journal.add(record)
            call.record = record
        try:
            async with call.lock:
                call.settled = await self._settle_first(call, call.record.micros)
        except (CountersUnavailable, CountersStale) as error:
            _log.info("call not settled yet", call=record.call, error=type(error).__name__)
        # back-pressure: a slow object store slows down callers instead of filling the memory
        await self.journal.wait_for_room()

    async def retake(self, account: str) -> None:
        """Restore the account's holds after a rebuild. Raises what `counters` raises."""
        await self._reconcile(account, live=True)

    async def run(self) -> None:
        """Write the journal and reconcile calls until cancelled."""
        async with asyncio.TaskGroup() as group:
            keep = self._supervisor.keep
            group.create_task(keep("usage_journal", self.journal.run, may_end=True))
            group.create_task(keep("holds_of_calls", partial(self._run_looks, group)))

    async def close(self) -> None:
        """Wait until the records of all ended calls are stored; `run` must be running.

        Call it after the `end` of the last call: a later one is refused, and its cost is lost.
        Charges that the counters do not take now are counted by their next rebuild.
        """
        await self.journal.close()
        accounts = {call.account for call in self._calls.values()}
        restore = partial(self._restore, live=False)
        await asyncio.gather(*(self._try(name, restore) for name in accounts))

    async def _run_looks(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        next_keep = loop.time() + KEEP_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_keep):
                    await self._wake.wait()
            if loop.time() >= next_keep:
                self._due.update((call.account, True) for call in self._calls.values())
                next_keep = loop.time() + KEEP_SECONDS
            self._wake.clear()
            # swapped before any await: accounts that become due meanwhile are for the next round
            due, self._due = self._due, {}
            look = {live: partial(self._look, live=live, group=group) for live in (False, True)}
            await asyncio.gather(*(self._try(name, look[live]) for name, live in due.items()))

    async def _look(self, account: str, *, live: bool, group: asyncio.TaskGroup) -> None:
        """Reconcile an account's calls, or start a rebuild that other accounts do not wait for."""
        try:
            async with self._looks:
                await self._reconcile(account, live=live)
        except CountersStale:
            if account not in self._rebuilding:
                self._rebuilding.add(account)
                group.create_task(self._rebuild_beside(account))

    async def _rebuild_beside(self, account: str) -> None:
        try:
            async with self._rebuilds:
                await self._try(account, partial(self._restore, live=True))
        finally:
            self._rebuilding.discard(account)

    async def _restore(self, account: str, *, live: bool) -> None:
        """Reconcile an account's calls; if its money is stale, rebuild it and reconcile all."""
        try:
            await self._reconcile(account, live=live)
        except CountersStale:
            if not await self._rebuild(account):
                raise
            await self._reconcile(account, live=True)

    async def _try(self, account: str, step: Callable[[str], Awaitable[None]]) -> None:
        """Run a step for an account, and schedule the account again if it fails."""
        unavailable = (CountersUnavailable, CountersStale, KubernetesError)
        with self._supervisor.guard("holds_of_calls", *unavailable, account=account) as attempt:
            await step(account)
        if attempt.failed:
            self._look_again(account)

    def _look_again(self, account: str) -> None:
        self._due[account] = True
        # delayed: an unavailable store must not be asked in a tight loop
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)

    async def _reconcile(self, account: str, *, live: bool) -> None:
        calls = [
            call
            for call in self._calls.values()
            if call.account == account and (live or call.record is not None)
        ]
        async with AsyncExitStack() as locks:
            for call in calls:
                # always in the order of `_calls`, so that two rounds cannot deadlock
                await locks.enter_async_context(call.lock)
            names = [call.hold.task for call in calls]
            kept = await self._counters.keep(account, self.journal.process, names)
            for call, state in zip(calls, kept.states, strict=True):
                await self._reconcile_call(call, state, kept.counted)

    async def _reconcile_call(self, call: _Call, state: CallState, counted: int) -> None:
        if call.record is None:
            if state == "gone":
                await self._counters.hold(call.account, call.hold)
        elif not await self._count(call, state, counted):
            # the counters were lost again and again
            self._look_again(call.account)
        elif call.stored:
            self._calls.pop(call.hold.task, None)

    async def _count(self, call: _Call, state: CallState, counted: int) -> bool:
        """Whether the cost of an ended call is in the counters for sure."""
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

    async def _settle_first(self, call: _Call, micros: int) -> bool:
        """Settle a call that has just ended, mostly in one step."""
        if call.sequence is None:
            # the store does not have the record yet, so no rebuild has counted it; one that does
            # later drops the hold, which is not restored while the call is locked
            return await self._settle(call, micros)
        kept = await self._counters.keep(call.account, self.journal.process, [call.hold.task])
        return await self._count(call, kept.states[0], kept.counted)

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
            # nothing to charge: a rebuild can neither double nor lose it
            if call.settled and record.micros == 0:
                del self._calls[record.call]
            else:
                self._due.setdefault(record.account, False)
        self._wake.set()
