"""The adaptive limiter of calls to a provider, shared by all batches of this process.

Where the provider's resource declares requests a second, calls are spaced evenly, and no second has
more of them. Else concurrency follows the answers: one more call after each round of answers, half
as many after a 429. Places go to accounts in turn, and to each account's batches in turn, so that a
long batch does not delay a short one.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.informer import Cache
from gateway_operator.context import Shards

SPAN_SECONDS = 1.02
"""The span for one second's requests: a little more, since their latencies differ."""
CATCH_UP_SECONDS = 0.1
"""How much of the schedule a process that was busy may catch up with at once."""
FIRST_CALLS = 8
"""Initial concurrency, where no rate is declared."""
DEFAULT_PAUSE = 1.0
LONGEST_PAUSE = 60.0
PROBE_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between calls to a provider that is down."""


_Share = OrderedDict[str, deque[asyncio.Future[None]]]


@dataclass(frozen=True, slots=True)
class Allowance:
    """This process's share of a provider: concurrent calls, and calls a second if declared."""

    calls: int
    per_second: float | None = None


class ProviderLimiter:
    """FairSemaphore for calls to one provider. For one event loop."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._window = float(min(FIRST_CALLS, allowance.calls))
        self._under_way = 0
        self._waiting: OrderedDict[str, _Share] = OrderedDict()
        self._next_at = 0.0
        self._begun: deque[float] = deque()
        self._paused_until = 0.0
        self._halved_at = float("-inf")
        self._timer: asyncio.Handle | None = None
        self._timer_due = float("inf")
        self._failures = 0
        self._failed_at = float("-inf")
        self._answered_at = float("-inf")

    @property
    def is_away(self) -> bool:
        """True if the provider is down: then one call at a time probes it."""
        return self._failures >= len(PROBE_PAUSES)

    @property
    def under_way(self) -> int:
        """Calls in flight."""
        return self._under_way

    def allow(self, allowance: Allowance) -> None:
        """Apply what the provider's resource declares now."""
        if allowance != self._allowance:
            self._allowance = allowance
            self._window = min(self._window, float(allowance.calls))
            self._begun.clear()
            self._give()

    async def enter(self, account: str, batch: str, *, again: bool = False) -> None:
        """Wait for a place for one call, to be returned with `leave`.

        A call that is repeated (`again`) goes before others of its batch: an old line blocks the
        window of all later ones.
        """
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(account, OrderedDict()).setdefault(batch, deque())
        if again:
            waiting.appendleft(future)
        else:
            waiting.append(future)
        self._give()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()
            else:
                self._drop(account, batch, future)
            raise

    def leave(self) -> None:
        """Return a place."""
        self._under_way -= 1
        self._give()

    def note_answer(self) -> None:
        """Note that the provider has answered a call: raise the concurrency."""
        self._failures = 0
        self._answered_at = asyncio.get_running_loop().time()
        self._window = min(float(self._allowance.calls), self._window + 1 / self._window)

    def has_answered(self, seconds: float) -> bool:
        """Return whether the provider has answered any call in the last `seconds`."""
        return asyncio.get_running_loop().time() - self._answered_at < seconds

    def note_busy(self, retry_after: float | None) -> None:
        """Note a 429: lower the concurrency, and pause as long as the provider asks."""
        now = asyncio.get_running_loop().time()
        if now - self._halved_at >= DEFAULT_PAUSE:
            # calls that were in flight together are one sign, not many
            self._halved_at = now
            self._window = max(1.0, self._window / 2)
        # without a pause: a provider that answers some calls gets the others, fewer at a time
        pause = retry_after if retry_after is not None else 0.0
        self._pause(min(LONGEST_PAUSE, pause))

    def note_failure(self, begun: float) -> None:
        """Note that a call that was `begun` then has failed, and not by its content.

        After some rounds of failures in a row the pauses grow; calls that were in flight together
        are one round.
        """
        if begun < self._failed_at:
            return
        self._failed_at = asyncio.get_running_loop().time()
        self._failures += 1
        if self._failures >= len(PROBE_PAUSES):
            step = min(self._failures - len(PROBE_PAUSES), len(PROBE_PAUSES) - 1)
            self._pause(PROBE_PAUSES[step])

    def note_denial(self) -> None:
        """Note that the provider refuses the credentials, until an admin has acted."""
        self._failures = max(self._failures + 1, len(PROBE_PAUSES))
        self._pause(PROBE_PAUSES[-1])

    def _pause(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self._paused_until = max(self._paused_until, until)

    def _most(self) -> int:
        if self.is_away:
            return 1
        if self._allowance.per_second is not None and self._halved_at == float("-inf"):
            return self._allowance.calls
        return max(1, int(self._window))

    def _give(self) -> None:
        """Give away the free places, and set the timer for the next one."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._under_way < self._most():
            due = max(self._paused_until, self._find_due(loop.time()))
            if due > loop.time():
                self._set_timer(due)
                return
            turn = self._take_turn()
            if turn.cancelled():
                continue  # cancelled in this instant: its waiter has not run yet
            turn.set_result(None)
            self._under_way += 1
            self._note_begun(loop.time())

    def _find_due(self, now: float) -> float:
        """When the next call may begin by the declared rate."""
        rate = self._allowance.per_second
        if rate is None:
            return now
        most = max(1, int(rate))
        due = self._next_at
        if len(self._begun) >= most:
            due = max(due, self._begun[-most] + SPAN_SECONDS * most / rate)
        return due

    def _note_begun(self, now: float) -> None:
        rate = self._allowance.per_second
        if rate is None:
            return
        self._next_at = max(self._next_at, now - CATCH_UP_SECONDS) + 1 / rate
        self._begun.append(now)
        while len(self._begun) > max(1, int(rate)):
            self._begun.popleft()

    def _set_timer(self, due: float) -> None:
        if due >= self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_due = None, float("inf")
        self._give()

    def _take_turn(self) -> asyncio.Future[None]:
        """Return the next waiter; its account and its batch come last from now on."""
        account, share = self._waiting.popitem(last=False)
        batch, waiting = share.popitem(last=False)
        future = waiting.popleft()
        if waiting:
            share[batch] = waiting
        if share:
            self._waiting[account] = share
        return future

    def _drop(self, account: str, batch: str, future: asyncio.Future[None]) -> None:
        share = self._waiting.get(account, OrderedDict())
        waiting = share.get(batch, deque())
        if future not in waiting:
            return
        waiting.remove(future)
        if not waiting:
            del share[batch]
        if not share:
            del self._waiting[account]


@dataclass(eq=False)
class ProviderLimiters:
    """Limiters by provider, each with this replica's share of what the resource declares."""

    providers: Cache[GatewayProvider]
    shards: Shards
    _limiters: dict[str, ProviderLimiter] = field(default_factory=dict, init=False)

    def open(self, provider: str) -> ProviderLimiter:
        """Return the limiter of a provider, as its resource declares it now."""
        allowance = self._read_allowance(provider)
        limiter = self._limiters.get(provider)
        if limiter is None:
            limiter = self._limiters[provider] = ProviderLimiter(allowance)
        else:
            limiter.allow(allowance)
        return limiter

    def _read_allowance(self, provider: str) -> Allowance:
        obj = self.providers.get(provider)
        if obj is None:
            return Allowance(1)
        rate = obj.spec.requests_per_second
        part = None if rate is None else rate * self.shards.share
        return Allowance(self.shards.scale(obj.spec.max_concurrent_requests), part)
