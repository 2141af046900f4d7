"""Holds of calls without an object, maintained by the process that serves the calls.

Such a hold is in the counters alone, so no other process can restore it once they are lost, or
knows that it is still needed. This module resets the age of holds while their calls run, restores
holds that a rebuild could not know of, and settles each ended call exactly once. A hold is that of
a group of calls (`call_groups`): of one call that was admitted alone, or of a lease (`leases`).

The record of an ended call is given to the journal before any await. A call that was admitted alone
is settled at once, the calls of a lease when it is renewed. Until a record is stored the counters
may be lost and rebuilt without it, so its group is checked once more after that. Whether a call is
charged follows from three steps whose order leaves no gap for a rebuild: the hold is taken first,
then one script reads the last rebuild's position in this process's journal, leaves out the records
up to it, which the sums include, and charges the others; this uses up the hold, which no rebuild
restores. Each group has a lock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial

import structlog

from gateway_core.billing.call_groups import CallGroup, CallGroups
from gateway_core.billing.counters import CallState, Hold
from gateway_core.billing.journal import CallRecord, JournalWriter
from gateway_core.billing.leases import Leases
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
        self._groups = CallGroups()
        self.leases = Leases(counters, self._groups, process, self._look_again, self._supervisor)
        # accounts to reconcile, and whether their unfinished calls are included
        self._due: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._looks = asyncio.Semaphore(_ACCOUNTS_AT_ONCE)
        self._rebuilds = asyncio.Semaphore(_REBUILDS_AT_ONCE)
        self._rebuilding: set[str] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def begin(self, account: str, hold: Hold) -> None:
        """Maintain the existing hold of a call until `end`; a call from a lease has none."""
        if self._groups.get(hold.task) is None:
            running = {hold.task: hold.micros}
            self._groups.add(CallGroup(account, hold.task, hold.subjects, running))

    def end_leased(self, record: CallRecord) -> bool:
        """As `end`, without a wait, for a call from a lease; False where `end` is to be called."""
        group = self._groups.get(record.call)
        if group is None or group.owner is None:
            return False
        self._add(group, record)
        return self.journal.has_room

    async def end(self, record: CallRecord) -> None:
        """Give an ended call's record to the journal and settle the call.

        The record is added before the first await, so a cancelled caller loses nothing: `run`
        retries the rest, also while the counters are unavailable. It waits for the counters and for
        room in the journal, so surfaces call it in a task of its own or shielded. Idempotent while
        the call is known. KeyError for an unknown call; JournalClosed after `close`.
        """
        group = self._groups.get(record.call)
        if group is None:
            raise KeyError(record.call)
        self._add(group, record)
        if group.name == record.call:
            try:
                async with group.lock:
                    group.settled = await self._settle(group)
            except (CountersUnavailable, CountersStale) as error:
                _log.info("call not settled yet", call=record.call, error=type(error).__name__)
        # back-pressure: a slow object store slows down callers instead of filling the memory
        await self.journal.wait_for_room()

    def _add(self, group: CallGroup, record: CallRecord) -> None:
        if record.call in group.running:
            self.journal.add(record)
            group.add(record)
            if group.owner is not None:
                group.owner.note_end()

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
        await self.leases.close()
        await self.journal.close()
        accounts = {group.account for group in self._groups}
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
                self._due.update((group.account, True) for group in self._groups)
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
        groups = [g for g in self._groups if g.account == account and (live or not g.is_open)]
        async with AsyncExitStack() as locks:
            for group in groups:
                # always in the order of `_groups`, so that two rounds cannot deadlock
                await locks.enter_async_context(group.lock)
            names = [group.name for group in groups]
            kept = await self._counters.keep(account, self.journal.process, names)
            for group, state in zip(groups, kept.states, strict=True):
                await self._reconcile_group(group, state, kept.counted)

    async def _reconcile_group(self, group: CallGroup, state: CallState, counted: int) -> None:
        if group.is_open:
            if state == "gone":
                if group.owner is not None:
                    group.owner.void()
                await self._counters.hold(group.account, group.need)
        elif not await self._count(group, state, counted):
            # the counters were lost again and again
            self._look_again(group.account)
        elif group.is_stored:
            self._groups.forget(group)

    async def _count(self, group: CallGroup, state: CallState, counted: int) -> bool:
        """Return whether the cost of ended calls is in the counters for sure."""
        for _ in range(_ATTEMPTS):
            if state == "charged":
                return True
            if state == "gone":
                if not group.count_missing(counted):
                    return True
                await self._counters.hold(group.account, group.need)
            elif await self._settle(group):
                return True
            kept = await self._counters.keep(group.account, self.journal.process, [group.name])
            state, counted = kept.states[0], kept.counted
        return False

    async def _settle(self, group: CallGroup) -> bool:
        # a record that the store gets meanwhile is counted by no rebuild, or by one that drops the
        # hold, which is not restored while the group is locked
        process, charges = self.journal.process, group.list_charges()
        return await self._counters.settle_calls(group.account, group.name, process, charges)

    def _note_sent(self, records: Sequence[CallRecord], sequence: int) -> None:
        self._groups.note_sent(records, sequence)

    def _note_stored(self, records: Sequence[CallRecord], _sequence: int) -> None:
        for group in self._groups.note_stored(records):
            if group.is_open or not group.is_stored:
                continue
            # nothing to charge: a rebuild can neither double nor lose it
            if group.settled and not group.owed:
                self._groups.forget(group)
            else:
                self._due.setdefault(group.account, False)
        self._wake.set()
