"""Calls that leave no object: from their hold to their charge, also if their client has left.

The work of a call goes on when its client has left, and what its provider has answered is charged
all the same. At the end of the process what is still under way is given up and costs nothing; what
has ended is stored in the journal before the process goes. Used by the surfaces whose calls are
answered at once.
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
from gateway_core.billing.reservations import CallReservations
from gateway_core.concurrency import FairSemaphore
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
        self._numbers = itertools.count(1)
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def unstored(self) -> int:
        """Records of ended calls that the store does not have yet."""
        return self._holds.journal.unsafe

    def name_call(self) -> str:
        """A name for a call and its hold that no other has."""
        return f"{CALL_PREFIX}{self._holds.journal.process}-{next(self._numbers)}"

    async def carry(
        self, record: CallRecord, hold: Hold, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """What `work` comes to; the hold, which stands, is charged for it, or nothing if it raises.

        `record` is what is known of the call before; its time and what it cost are filled in. Where
        `work` raises a GatewayError, no upstream was called.
        """
        self._holds.begin(record.account, hold)
        task = asyncio.create_task(self._carry(record, hold, work))
        self._running.add(task)
        task.add_done_callback(self._forget)
        # shielded: to cancel who waits for it must not lose what it costs
        return await asyncio.shield(task)

    async def rebuild(self, account: str, rebuild: Callable[[str], Awaitable[bool]]) -> bool:
        """Has an account's money rebuilt, and the holds of its calls here taken again at once."""
        is_rebuilt = await rebuild(account)
        if is_rebuilt:
            # else `run` does it some seconds later
            with suppress(CountersStale, CountersUnavailable):
                await self._holds.retake(account)
        return is_rebuilt

    async def run(self) -> None:
        """Writes the journal and sees to the holds until cancelled."""
        await self._holds.run()

    async def close(self) -> None:
        """Gives up what is under way and stores what has ended; called while `run` runs."""
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
            # of a call that has begun the upstream's own errors are raised
            reached = False
            raise
        else:
            return result
        finally:
            ended = replace(
                record, time=self._clock(), micros=micros, failed=failed, reached=reached
            )
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
        """Calls in flight."""
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
