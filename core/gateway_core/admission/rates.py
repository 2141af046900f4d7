"""Rate limiters: one call to the counters, and the fallback while they are down.

Contract §12 gives the rules of paid calls, §12.5 those without a counter store. Free rates bound
Platform Management and creates of files (§12.1a). Without the counter store each process counts its
part of such a limit, for as long as that lasts: no money depends on these calls, and a leaked key
must be revocable during an outage of Redis.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import structlog

from gateway_core.accounts.guardrails import Policy
from gateway_core.accounts.records import AccountRecord
from gateway_core.api.errors import RateState, TooManyCalls, Unavailable
from gateway_core.billing.counters import (
    AdmissionAnswer,
    AdmissionCall,
    Budget,
    BudgetState,
    FreeRate,
    Hold,
    RateUse,
    Spending,
)
from gateway_core.billing.leases import Leases
from gateway_core.billing.ledger import RebuildLapsed
from gateway_core.billing.redis_counters import Counters
from gateway_core.concurrency import SingleFlight
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesError
from gateway_core.redis.link import CountersRefused, CountersStale, CountersUnavailable
from gateway_core.storage.objects import StoreUnavailable

WINDOW_SECONDS = 60.0
MOST_OUTAGE_SECONDS = 60.0
OUTAGE_GAP_SECONDS = 30.0
"""Failures further apart than this are separate outages: no call has asked in between."""
REBUILD_WAIT_SECONDS = 5.0
REBUILD_PAUSE_SECONDS = 0.05
MOST_REBUILD_PAUSE_SECONDS = 0.5
"""Between the first and later looks at another replica's rebuild."""
MOST_LAPSES = 3
LAPSE_PAUSE_SECONDS = 2.0
"""After a rebuild that was too slow, the longer the more of them."""
_RETRY_SECONDS = 5

MOST_REJECTION_SECONDS = 60.0
MOST_REJECTED = 10_000

_log = structlog.get_logger(__name__)

_TITLES: Mapping[FreeRate, str] = {
    "management": "management calls",
    "storage": "creates of files and uploads",
    "tools": "calls of reading tools",
}

T = TypeVar("T")
_Payer = tuple[str, tuple[Budget, ...]]

Rebuild = Callable[[str], Awaitable[bool]]
"""Puts an account's ledger in place; False where another replica is at it. RebuildLapsed."""


@dataclass(slots=True)
class _Window:
    """The calls of the last minute, and how many of them this process may let in."""

    limit: int
    part: int
    calls: deque[float]
    now: float

    @property
    def left(self) -> int:
        """Calls that still fit; below 0 after the limit was lowered."""
        return self.part - len(self.calls)

    @property
    def free_at(self) -> float:
        """Unix seconds at which one more call fits than now."""
        leaver = max(0, -self.left)
        return (self.calls[leaver] if self.calls else self.now) + WINDOW_SECONDS


class LocalWindows:
    """Trailing minutes of accounts and budgets in this process, for the time without counters."""

    def __init__(self, replicas: int, clock: Callable[[], float]) -> None:
        self._replicas = replicas
        self._clock = clock
        self._calls: dict[tuple[str, str], deque[float]] = {}

    def admit(
        self, account: AccountRecord, budgets: Sequence[Budget] = (), rate: RateUse = "count"
    ) -> AdmissionAnswer:
        """Counts one call against this process's part of each limit, or against none."""
        now = self._clock()
        windows = [self._open(account.name, "", account.requests_per_minute, now)]
        windows += [
            self._open(account.name, budget.subject, budget.requests_per_minute, now)
            for budget in budgets
            if budget.requests_per_minute is not None
        ]
        full = [window for window in windows if window.left <= 0]
        if full:
            last = max(full, key=lambda window: window.free_at)
            state = RateState(last.limit, 0, math.ceil(last.free_at))
            wait = max(1, math.ceil(last.free_at - now))
            return AdmissionAnswer(rate=state, rate_exceeded=True, retry_after=wait)
        if rate == "count":
            for window in windows:
                window.calls.append(now)
        tightest = min(windows, key=lambda window: (window.left, -window.free_at))
        return AdmissionAnswer(
            RateState(tightest.limit, tightest.left, math.ceil(tightest.free_at))
        )

    def count(self, account: str, rate: FreeRate, limit: int) -> int:
        """As `Counters.count`, against this process's part of the limit."""
        now = self._clock()
        window = self._open(account, rate, limit, now)
        if window.left <= 0:
            return max(1, math.ceil(window.free_at - now))
        window.calls.append(now)
        return 0

    def _open(self, account: str, subject: str, limit: int, now: float) -> "_Window":
        calls = self._calls.setdefault((account, subject), deque())
        while calls and calls[0] <= now - WINDOW_SECONDS:
            calls.popleft()
        return _Window(limit, max(1, limit // self._replicas), calls, now)

    def clear(self) -> None:
        """Forget everything: the shared counters are back."""
        self._calls.clear()


class RateLimiter:
    """Counts paid calls and takes their holds."""

    def __init__(
        self,
        counters: Counters,
        rebuild: Rebuild,
        *,
        leases: Leases | None = None,
        replicas: int = 1,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._counters = counters
        self._rebuild = rebuild
        self._leases = leases
        self._clock = clock
        self._local = LocalWindows(replicas, clock)
        self._outage_began: float | None = None
        self._failed_at = -math.inf
        self._rebuilds = SingleFlight[bool]()

    def take(self, account: AccountRecord, policy: Policy, hold: Hold) -> RateState | None:
        """Admit a call without an object from a lease: the rate that is left; None without one."""
        return None if self._leases is None else self._leases.take(account, policy, hold)

    async def admit(
        self,
        account: AccountRecord,
        hold: Hold | None,
        budgets: tuple[Budget, ...] = (),
        rate: RateUse = "count",
    ) -> AdmissionAnswer:
        """Return the counters' answer; `stale` in it means that no hold could be taken.

        Raises Unavailable where a call of this account, within these budgets of its key and
        guardrails, cannot be served without the counters.
        """
        funds = None if account.unlimited else account.funds
        call = AdmissionCall(account.name, account.requests_per_minute, hold, funds, rate, budgets)
        try:
            answer = await self._counters.admit(call)
        except CountersUnavailable as error:
            return self._admit_alone(account, budgets, rate, error)
        if self._outage_began is not None:
            self._outage_began = None
            self._local.clear()
            _log.info("the counters are back")
        if not answer.stale:
            return await self._reconsider(call, answer)
        try:
            # nothing is counted of a call whose money could not be looked at
            if await self.rebuild(account.name):
                answer = await self._counters.admit(call)
            if answer.stale:
                counted = await self._counters.admit(replace(call, hold=None))
                answer = replace(counted, stale=True)
        except CountersUnavailable as error:
            return self._admit_alone(account, budgets, rate, error)
        return answer

    async def _reconsider(self, call: AdmissionCall, answer: AdmissionAnswer) -> AdmissionAnswer:
        """Return the answer, or another if leases of this process have what a call lacks."""
        refused = answer.rate_exceeded or answer.underfunded or answer.exceeded is not None
        if not refused or self._leases is None or not await self._leases.flush(call.account):
            return answer
        # a call that lacks money has been counted
        again = replace(call, rate="skip") if answer.underfunded else call
        with suppress(CountersUnavailable):
            second = await self._counters.admit(again)
            return replace(second, rate=answer.rate) if answer.underfunded else second
        return answer

    async def rebuild(self, account: str) -> bool:
        """Return whether the account's money is back, rebuilt from the record within 5 s.

        One rebuild at a time for an account, another replica's waited for like an own one; it goes
        on when the wait is over, but not where the record is read too slowly time and again: the
        next call begins another.
        """
        try:
            async with asyncio.timeout(REBUILD_WAIT_SECONDS):
                return await self._rebuilds.run(account, partial(self._run_rebuild, account))
        except TimeoutError:
            return False

    async def read_spending(self, account: str) -> Spending:
        """Return what was charged and is held; rebuilt first if it is lost. Unavailable."""
        await self._flush(account)
        today = self._now().date().isoformat()
        try:
            return await self._read(account, lambda: self._counters.read_spending(account, today))
        except (CountersStale, CountersUnavailable) as error:
            raise Unavailable("The balance cannot be read now.") from error

    async def read_budgets(
        self, account: str, budgets: Sequence[Budget]
    ) -> list[BudgetState] | None:
        """Return the state of each budget, rebuilt first if it is lost.

        Return None if it cannot be read.
        """
        await self._flush(account)
        try:
            return await self._read(account, lambda: self._counters.read_budgets(account, budgets))
        except (CountersStale, CountersUnavailable) as error:
            _log.warning("budgets cannot be read", account=account, error=str(error))
            return None

    async def _flush(self, account: str) -> None:
        if self._leases is not None:
            await self._leases.flush(account)

    async def _read(self, account: str, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await read()
        except CountersStale:
            await self.rebuild(account)
            return await read()

    async def release(self, account: str, task: str) -> None:
        """Gives back a hold that no task will use. What fails is left to the sweeper."""
        try:
            await self._counters.settle(account, task, 0, self._now())
        except (CountersUnavailable, CountersStale):
            _log.warning("a hold was not released", account=account, task=task)

    async def _run_rebuild(self, account: str) -> bool:
        lapses, pause = 0, REBUILD_PAUSE_SECONDS
        try:
            while True:
                wait = pause
                try:
                    if await self._rebuild(account):
                        return True
                    pause = min(2 * pause, MOST_REBUILD_PAUSE_SECONDS)
                except RebuildLapsed:
                    lapses += 1
                    if lapses == MOST_LAPSES:
                        raise
                    wait = LAPSE_PAUSE_SECONDS * lapses
                await asyncio.sleep(wait)
                with suppress(CountersStale):
                    await self._counters.read_spending(account, self._now().date().isoformat())
                    return True
        except (KubernetesError, StoreUnavailable, CountersUnavailable) as error:
            _log.warning("money was not rebuilt", account=account, error=str(error))
            return False

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _admit_alone(
        self,
        account: AccountRecord,
        budgets: tuple[Budget, ...],
        rate: RateUse,
        error: CountersUnavailable,
    ) -> AdmissionAnswer:
        if isinstance(error, CountersRefused):
            _log.error("the counters refuse a call", account=account.name, error=str(error))
            raise _refuse() from error
        now = self._clock()
        if self._outage_began is None or now - self._failed_at > OUTAGE_GAP_SECONDS:
            self._outage_began = now
            _log.warning("the counters are away", error=str(error))
        self._failed_at = now
        limited = not account.unlimited or any(budget.limit is not None for budget in budgets)
        if limited or now - self._outage_began > MOST_OUTAGE_SECONDS:
            raise _refuse() from error
        return self._local.admit(account, budgets, rate)


def _refuse() -> Unavailable:
    return Unavailable("The gateway cannot check limits now.", retry_after=_RETRY_SECONDS)


class RecentRejections:
    """Accounts that recently hit their rate limit, with the budgets that were asked for.

    Admission rejects their calls before it reads the body. The counters decide on every call; this
    only says which question comes first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[_Payer, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def note(self, account: str, budgets: Sequence[Budget], seconds: float) -> None:
        """Note that a call was rejected for its rate, for about so many seconds."""
        payer = account, tuple(budgets)
        # the newest comes last, so that the oldest makes room
        self._until.pop(payer, None)
        if len(self._until) >= MOST_REJECTED:
            del self._until[next(iter(self._until))]
        self._until[payer] = self._clock() + min(seconds, MOST_REJECTION_SECONDS)

    def forget(self, account: str, budgets: Sequence[Budget]) -> None:
        """Forget a rejection: there is room again."""
        self._until.pop((account, tuple(budgets)), None)

    def contains(self, account: str, budgets: Sequence[Budget]) -> bool:
        """Return whether a call would probably be rejected."""
        if not self._until:
            return False
        payer = account, tuple(budgets)
        until = self._until.get(payer)
        if until is None:
            return False
        if until > self._clock():
            return True
        del self._until[payer]
        return False


class FreeRateLimiter:
    """Counts calls that cost nothing, by account. `limits` are calls in any trailing 60 s."""

    def __init__(
        self,
        counters: Counters,
        limits: Mapping[FreeRate, int],
        *,
        replicas: int = 1,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._counters = counters
        self._limits = limits
        self._local = LocalWindows(replicas, clock)
        self._away = False

    async def count(self, account: str, rate: FreeRate) -> None:
        """Counts one call of the account. Raises TooManyCalls beyond the limit."""
        limit = self._limits[rate]
        try:
            wait = await self._counters.count(account, rate, limit)
        except CountersUnavailable as error:
            if not self._away:
                self._away = True
                _log.warning("free calls are counted by each process", error=str(error))
            wait = self._local.count(account, rate, limit)
        else:
            if self._away:
                self._away = False
                self._local.clear()
        if wait:
            text = f"Rate limit of {limit} {_TITLES[rate]} per minute reached."
            raise TooManyCalls(text, retry_after=wait)
