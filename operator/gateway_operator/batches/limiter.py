"""The way to one provider, shared by all batches of this process: how many calls, how fast, whose.

Where the provider's owner declares its requests a second, they are spaced so, and in no second are
there more of them; else as many calls are under way as the provider does not answer 429 to: one
more after each round of answers, half as many after a 429. Places are given to accounts in turn,
and to each account's batches in turn, so that a long batch holds up no short one.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

SPAN_SECONDS = 1.02
"""In which no more than a second's requests are begun: they do not take equally long to arrive."""
CATCH_UP_SECONDS = 0.1
"""A process that was busy makes up for as much at once."""
FIRST_CALLS = 8
"""Calls at one time to begin with, where nothing is declared."""
DEFAULT_PAUSE = 1.0
LONGEST_PAUSE = 60.0
PROBE_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between calls to a provider that answers nobody."""


_Share = OrderedDict[str, deque[asyncio.Future[None]]]


@dataclass(frozen=True, slots=True)
class Allowance:
    """This process's part of what a provider takes: calls at one time, and a second if declared."""

    calls: int
    per_second: float | None = None


class Lane:
    """Places for calls to one provider. For one event loop."""

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
        """Whether the provider answers nobody: one call at a time is made to find out."""
        return self._failures >= len(PROBE_PAUSES)

    @property
    def under_way(self) -> int:
        """Calls that have a place."""
        return self._under_way

    def allow(self, allowance: Allowance) -> None:
        """Takes in what the provider's resource says now."""
        if allowance != self._allowance:
            self._allowance = allowance
            self._window = min(self._window, float(allowance.calls))
            self._begun.clear()
            self._give()

    async def enter(self, account: str, batch: str, *, again: bool = False) -> None:
        """Waits for a place for one call; whoever has it leaves it.

        A call that is made `again` comes before others of its batch: what is old holds up the rest.
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
        """Gives a place back."""
        self._under_way -= 1
        self._give()

    def note_answer(self) -> None:
        """The provider has answered a call: more may be under way."""
        self._failures = 0
        self._answered_at = asyncio.get_running_loop().time()
        self._window = min(float(self._allowance.calls), self._window + 1 / self._window)

    def has_answered(self, seconds: float) -> bool:
        """Whether the provider has answered a call in the last `seconds`, whatever it thinks."""
        return asyncio.get_running_loop().time() - self._answered_at < seconds

    def note_busy(self, retry_after: float | None) -> None:
        """The provider has taken no call: fewer are made, and none before it wants them."""
        now = asyncio.get_running_loop().time()
        if now - self._halved_at >= DEFAULT_PAUSE:
            # calls that were under way together are one sign, not many
            self._halved_at = now
            self._window = max(1.0, self._window / 2)
        # one that answers others goes on with them, fewer at a time
        pause = retry_after if retry_after is not None else 0.0
        self._pause(min(LONGEST_PAUSE, pause))

    def note_failure(self, begun: float) -> None:
        """A call that was `begun` then has failed, and not for what was in it.

        After some rounds of these, one after the other, the provider is left alone for ever longer;
        calls that were under way together are one round.
        """
        if begun < self._failed_at:
            return
        self._failed_at = asyncio.get_running_loop().time()
        self._failures += 1
        if self._failures >= len(PROBE_PAUSES):
            step = min(self._failures - len(PROBE_PAUSES), len(PROBE_PAUSES) - 1)
            self._pause(PROBE_PAUSES[step])

    def note_denial(self) -> None:
        """The provider refuses the credentials: nothing is of use until an admin has acted."""
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
        """Gives places as far as there are any, and sees to it that it is called again in time."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._under_way < self._most():
            due = max(self._paused_until, self._find_due(loop.time()))
            if due > loop.time():
                self._set_timer(due)
                return
            turn = self._take_turn()
            if turn.cancelled():
                continue  # in this instant: who gave up has not been told yet
            turn.set_result(None)
            self._under_way += 1
            self._note_begun(loop.time())

    def _find_due(self, now: float) -> float:
        """When the next call may begin by what is declared."""
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
        """The next one's, and has its account and its batch come last from now on."""
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


class Lanes:
    """The lanes by provider."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def open(self, provider: str, allowance: Allowance) -> Lane:
        """The lane of a provider, as its resource allows it now."""
        lane = self._lanes.get(provider)
        if lane is None:
            lane = self._lanes[provider] = Lane(allowance)
        else:
            lane.allow(allowance)
        return lane
