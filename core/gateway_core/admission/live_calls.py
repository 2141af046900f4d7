"""Calls without objects: from their reservation to their charge, also if the client disconnects.

A call goes on after its client has disconnected, and a response of its provider is charged. At the
end of the process, calls under way are cancelled and cost nothing; the records of ended ones are
stored in the journal before the process exits. For surfaces that respond at once.
"""

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import structlog

from gateway_core.api.errors import GatewayError, Unavailable
from gateway_core.api.ids import CALL_PREFIX
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import CallRecord
from gateway_core.billing.leases import Leases
from gateway_core.billing.reservations import CallReservations
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersStale, CountersUnavailable

T = TypeVar("T")

PROVIDER_WAIT_SECONDS = 10.0
"""How long a call waits for its account's share; as long as at the provider's own limit."""
CLOSE_SECONDS = 3.0
"""How long the process waits for the store at its end; the chart's grace period has it."""

_log = structlog.get_logger(__name__)


class LiveCalls:
    """The calls of this process while `run` runs."""

    def __init__(self, holds: CallReservations, clock: Callable[[], datetime] = CLOCK.now) -> None:
        self._holds = holds
        self._clock = clock
        self._prefix = f"{CALL_PREFIX}{holds.journal.process}-"
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def leases(self) -> Leases:
        """The leases that busy payers' calls are admitted from."""
        return self._holds.leases

    @property
    def unstored(self) -> int:
        """Records of ended calls that the store does not have yet."""
        return self._holds.journal.unsafe

    def name_call(self) -> str:
        """Return a unique name for a call and its reservation."""
        return f"{self._prefix}{next(self._numbers)}"

    async def carry(
        self, record: CallRecord, hold: Hold, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Run `work` and charge the whole `hold`, which is reserved, or nothing if it raises.

        `record` describes the call before it; its time and cost are filled in. If `work` raises a
        GatewayError, no upstream was called.
        """
        self._holds.begin(record.account, hold)
        task = asyncio.create_task(self._carry(record, hold, work))
        self._running.add(task)
        task.add_done_callback(self._forget)
        # shielded: the cancellation of a waiting caller must not lose the charge
        return await asyncio.shield(task)

    def begin(self, account: str, hold: Hold) -> None:
        """Maintain the hold of a call, which stands, until `end`. For calls that end with their
        client, such as streams."""
        self._holds.begin(account, hold)

    def end_leased(self, record: CallRecord) -> bool:
        """Charge an ended call without a wait; False where `end` is to be called: it has no lease,
        or the journal is full."""
        return self._holds.end_leased(record)

    async def end(self, record: CallRecord) -> None:
        """Charge an ended call and settle its hold; a cancelled caller loses nothing."""
        if not self._holds.end_leased(record):
            await asyncio.shield(self._holds.end(record))

    async def rebuild(self, account: str, rebuild: Callable[[str], Awaitable[bool]]) -> bool:
        """Rebuild an account's money, and reserve again for its calls of this process."""
        is_rebuilt = await rebuild(account)
        if is_rebuilt:
            # else `run` does it some seconds later
            with suppress(CountersStale, CountersUnavailable):
                await self._holds.retake(account)
        return is_rebuilt

    async def run(self) -> None:
        """Write the journal and reconcile reservations until cancelled."""
        await self._holds.run()

    async def close(self) -> None:
        """Cancel calls under way and store the records of ended ones; called while `run` runs."""
        running = list(self._running)
        for task in running:
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*running, return_exceptions=True)
                await self._holds.close()
        except TimeoutError:
            _log.error("the journal was not stored to its end", lost_records=self.unstored)

    async def _carry(
        self, record: CallRecord, hold: Hold, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        micros, failed, reached = 0, True, True
        try:
            result = await work()
            micros, failed = hold.micros, False
        except GatewayError:
            # once an upstream is called, its own errors are raised instead
            reached = False
            raise
        else:
            return result
        finally:
            ended = replace(
                record, time=self._clock(), micros=micros, failed=failed, reached=reached
            )
            if not self._holds.end_leased(ended):
                await self._holds.end(ended)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # a waiting caller has raised it; without one it is no defect
            task.exception()


class AccountLimiter:
    """Bounds each account to half of a provider's concurrent calls."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, int], FairSemaphore] = {}

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return sum(share.held for share in self._shares.values())

    def take(self, provider: str, account: str, calls: int) -> AbstractAsyncContextManager[None]:
        """Hold one of the account's share of the `calls` a provider takes. Unavailable."""
        most = max(1, calls // 2)
        share = self._shares.get((provider, most))
        if share is None:
            share = self._shares[provider, most] = FairSemaphore(
                sys.maxsize,
                per_holder=most,
                seconds=PROVIDER_WAIT_SECONDS,
                error=lambda: Unavailable("Too many such calls of this account are under way."),
            )
        return share.take(account)
