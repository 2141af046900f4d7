"""The counters at the door: one call to them, and what is done while they are lost or away.

Used by `admission` alone. Contract §12 gives the rules, §12.5 those without a counter store.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from gateway_apiserver.entries import AccountRecord
from gateway_core.contract.errors import RateState, Unavailable
from gateway_core.ports.counters import (
    AdmissionAnswer,
    AdmissionCall,
    Counters,
    CountersStale,
    CountersUnavailable,
    Hold,
)
from gateway_core.ports.objects import StoreUnavailable
from gateway_core.ports.records import RecordError

WINDOW_SECONDS = 60.0
MOST_OUTAGE_SECONDS = 60.0
REBUILD_WAIT_SECONDS = 5.0
REBUILD_PAUSE_SECONDS = 0.05
_RETRY_SECONDS = 5

_log = structlog.get_logger(__name__)

Rebuild = Callable[[str], Awaitable[bool]]
"""Puts an account's ledger in place; False where another replica is at it."""


class LocalWindows:
    """Trailing minutes of single accounts in this process, for the time without counters."""

    def __init__(self, replicas: int, clock: Callable[[], float]) -> None:
        self._replicas = replicas
        self._clock = clock
        self._calls: dict[str, deque[float]] = {}

    def admit(self, account: AccountRecord) -> AdmissionAnswer:
        """Counts one call against this process's part of the account's limit."""
        now = self._clock()
        limit = max(1, account.requests_per_minute // self._replicas)
        calls = self._calls.setdefault(account.name, deque())
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        exceeded = len(calls) >= limit
        if not exceeded:
            calls.append(now)
        free_at = calls[0] + WINDOW_SECONDS
        state = RateState(account.requests_per_minute, limit - len(calls), math.ceil(free_at))
        wait = max(1, math.ceil(free_at - now)) if exceeded else 0
        return AdmissionAnswer(rate=state, rate_exceeded=exceeded, retry_after=wait)

    def clear(self) -> None:
        """Forgets everything: the shared counters are back."""
        self._calls.clear()


class RateGate:
    """Counts paid calls and takes their holds."""

    def __init__(
        self,
        counters: Counters,
        rebuild: Rebuild,
        *,
        replicas: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counters = counters
        self._rebuild = rebuild
        self._clock = clock
        self._local = LocalWindows(replicas, clock)
        self._outage_began: float | None = None
        self._rebuilds: dict[str, asyncio.Task[bool]] = {}

    async def admit(self, account: AccountRecord, hold: Hold | None) -> AdmissionAnswer:
        """The counters' answer; `stale` in it means that no hold could be taken.

        Raises Unavailable where this account cannot be served without the counters.
        """
        funds = None if account.unlimited else account.funds
        call = AdmissionCall(account.name, account.requests_per_minute, hold, funds)
        try:
            answer = await self._counters.admit(call)
        except CountersUnavailable as error:
            return self._admit_alone(account, error)
        if self._outage_began is not None:
            self._outage_began = None
            self._local.clear()
            _log.info("the counters are back")
        if not answer.stale or not await self.rebuild(account.name):
            return answer
        try:
            # the call has its place in the rate already
            again = await self._counters.admit(replace(call, counted=False))
        except CountersUnavailable:
            return answer
        return replace(again, rate=answer.rate)

    async def rebuild(self, account: str) -> bool:
        """Whether the account's money is back, rebuilt from the record within 5 s.

        One rebuild at a time for an account, another replica's waited for like an own one; it goes
        on when the wait is over.
        """
        task = self._rebuilds.get(account)
        if task is None:
            task = asyncio.create_task(self._run_rebuild(account))
            self._rebuilds[account] = task
            task.add_done_callback(lambda _: self._rebuilds.pop(account, None))
        try:
            async with asyncio.timeout(REBUILD_WAIT_SECONDS):
                return await asyncio.shield(task)
        except TimeoutError:
            return False

    async def release(self, account: str, task: str) -> None:
        """Gives back a hold that no task will use. What fails is left to the sweeper."""
        try:
            await self._counters.settle(account, task, 0, self._now())
        except (CountersUnavailable, CountersStale):
            _log.warning("a hold was not released", account=account, task=task)

    async def _run_rebuild(self, account: str) -> bool:
        try:
            while not await self._rebuild(account):
                await asyncio.sleep(REBUILD_PAUSE_SECONDS)
                with suppress(CountersStale):
                    await self._counters.read_spending(account, self._now().date().isoformat())
                    break
        except (RecordError, StoreUnavailable, CountersUnavailable) as error:
            _log.warning("money was not rebuilt", account=account, error=str(error))
            return False
        return True

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _admit_alone(self, account: AccountRecord, error: CountersUnavailable) -> AdmissionAnswer:
        now = self._clock()
        if self._outage_began is None:
            self._outage_began = now
            _log.warning("the counters are away", error=str(error))
        if not account.unlimited or now - self._outage_began > MOST_OUTAGE_SECONDS:
            raise Unavailable(
                "The gateway cannot check limits now.", retry_after=_RETRY_SECONDS
            ) from error
        return self._local.admit(account)
