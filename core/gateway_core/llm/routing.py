"""Choice of a route for an LLM call: priorities and weights, circuit breakers, credentials in turn.

All of it is the state of one process: replicas learn of a failing provider by their own calls.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate

from gateway_core.api.model import Route

WINDOW_CALLS = 20
LEAST_FAILURES = 5
"""A circuit opens when, of the last 20 calls, at least 5 and at least half have failed."""
FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 120.0
"""A longer Retry-After of a provider is shortened to this, as for clients (contract §1.3)."""
ALONE_SECONDS = 60.0
"""An account whose calls alone fail, while another account's succeeded within this time, opens no
circuit: it may provoke its failures."""
PROBE_SECONDS = 150.0
"""After so long a probe without an outcome no longer keeps others from probing."""

PROBE_REFUSED_SECONDS = 1.0
"""After so long a call that no other provider can answer tries a refused credential again."""
PROMPT_SECONDS = 1.0
"""How long a probe may take before calls that no other provider can answer no longer join it."""


class CircuitBreaker:
    """Whether calls may be sent to a provider. Times are seconds of one monotonic clock.

    Closed, it lets all calls pass. Open, it lets none pass until its rest is over; then it is half
    open and lets one probe pass, which closes it or doubles the rest.
    """

    __slots__ = (
        "_asked_until",
        "_is_heard",
        "_outcomes",
        "_probe_at",
        "_rest",
        "_succeeded",
        "_until",
    )

    def __init__(self) -> None:
        # the account of each failed call, None for a success
        self._outcomes: deque[str | None] = deque(maxlen=WINDOW_CALLS)
        self._succeeded: dict[str, float] = {}
        """When calls of the last two accounts succeeded last."""
        self._rest = 0.0
        """Seconds of the last rest; 0 while closed."""
        self._until = 0.0
        self._asked_until = 0.0
        """Until when the provider has asked for no calls."""
        self._probe_at: float | None = None
        self._is_heard = False
        """Return whether the probe has got the head of a response."""

    @property
    def is_open(self) -> bool:
        """Whether the provider has failed and no probe has succeeded since."""
        return self._rest > 0

    @property
    def is_rested(self) -> bool:
        """Whether calls pass, if that is known without the clock."""
        return self._until == 0.0 and self._probe_at is None

    def count_rest(self, now: float) -> float:
        """Return seconds until a call may pass, 0 if one may now."""
        if self._is_probed(now):
            return self._rest
        if self._until > now:
            return self._until - now
        if not self._rest:
            self._until = 0.0
        return 0.0

    def may_try(self, now: float) -> bool:
        """Return whether a call that no other provider can answer may pass an open circuit.

        Not while the provider has asked for no calls, nor while it leaves a probe unanswered: calls
        would pile up at a provider that is silent.
        """
        is_late = self._is_probed(now) and now >= (self._probe_at or 0.0) + PROMPT_SECONDS
        return now >= self._asked_until and (self._is_heard or not is_late)

    def begin(self, now: float, *, is_last: bool = False) -> bool:
        """Take a call's permission to pass. One that has it must succeed, fail or be dropped.

        `is_last`: no other provider can answer it, so it is a probe before the end of the rest.
        """
        if self.is_rested:
            return True
        if self.count_rest(now) > 0 and not (is_last and self.may_try(now)):
            return False
        if self._rest > 0 and not self._is_probed(now):
            self._probe_at, self._is_heard = now, False
        return True

    def hear(self, began: float) -> None:
        """Note the head of a response, whose outcome is open; `began` is what `begin` got."""
        if self._probe_at == began:
            self._is_heard = True

    def succeed(self, account: str, now: float) -> None:
        """Note a call that the provider answered."""
        if self._rest > 0:
            self._outcomes.clear()
            # also by a call that joined a failed probe: a closed circuit does not rest
            self._rest, self._probe_at, self._until = 0.0, None, self._asked_until
        self._outcomes.append(None)
        if account not in self._succeeded and len(self._succeeded) > 1:
            del self._succeeded[min(self._succeeded, key=self._succeeded.__getitem__)]
        self._succeeded[account] = now

    def fail(self, now: float, account: str) -> None:
        """Note a call that failed by the provider's fault."""
        self._outcomes.append(account)
        failures = len(self._outcomes) - self._outcomes.count(None)
        if self._probe_at is not None:
            self._rest = min(LONGEST_REST_SECONDS, 2 * self._rest)
        elif self._rest > 0:
            # a call that began before the circuit opened says nothing new
            return
        elif self._is_alone(account, now):
            return
        elif failures >= LEAST_FAILURES and 2 * failures >= len(self._outcomes):
            self._rest = FIRST_REST_SECONDS
        else:
            return
        self._probe_at = None
        # spread, so that replicas do not probe at one time
        self._until = max(self._until, now + self._rest * random.uniform(0.8, 1.2))  # noqa: S311

    def _is_probed(self, now: float) -> bool:
        return self._probe_at is not None and now < self._probe_at + PROBE_SECONDS

    def _is_alone(self, account: str, now: float) -> bool:
        """Return whether only this account's calls fail, while another's succeed."""
        others = (at for name, at in self._succeeded.items() if name != account)
        return set(self._outcomes) <= {account, None} and any(
            now - at < ALONE_SECONDS for at in others
        )

    def drop(self, began: float) -> None:
        """Note a call without an outcome, as its client has left; `began` is what `begin` got.

        If it was the probe, another call may be; a call that only joined the probe changes nothing.
        """
        if self._probe_at == began:
            self._probe_at = None

    def pause(self, seconds: float, now: float) -> None:
        """Let no call pass for the time that the provider has asked for (Retry-After)."""
        self._probe_at = None
        self._asked_until = max(self._asked_until, now + min(seconds, LONGEST_RETRY_SECONDS))
        self._until = max(self._until, self._asked_until)


class Pace:
    """At most `rate` calls a second: those of one second may come at once, the others evenly."""

    __slots__ = ("_due", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._due = 0.0
        """When the call after the last one would come at an even pace."""

    def take(self, now: float) -> bool:
        """Count a call, if one may be sent now."""
        if self.count_rest(now) > 0:
            return False
        self._due = max(self._due, now) + 1 / self._rate
        return True

    def count_rest(self, now: float) -> float:
        """Return seconds until a call may be sent, 0 if one may now."""
        # a rate below one a second has room for one call
        burst = max(1.0, 1 / self._rate)
        return max(0.0, self._due + 1 / self._rate - burst - now)


def choose_route(
    routes: Sequence[Route],
    is_usable: Callable[[str], bool],
    draw: Callable[[], float] = random.random,
) -> Route | None:
    """Return a route of the lowest priority whose provider is usable, drawn by weight."""
    usable = [route for route in routes if is_usable(route.provider_name)]
    if len(usable) < 2:
        return usable[0] if usable else None
    best = min(route.priority for route in usable)
    tier = [route for route in usable if route.priority == best]
    sums = list(accumulate(route.weight for route in tier))
    point = draw() * sums[-1]
    return next((route for route, total in zip(tier, sums, strict=True) if point < total), tier[0])


class CredentialRing:
    """Credentials of a provider, taken in turn; those it has just refused or limited are left out.

    A call that no other provider can answer may try a refused one, once a second. `size` is at
    least 1: a provider without a Secret has one empty credential.
    """

    __slots__ = ("_limited", "_next", "_tried_at", "_until")

    def __init__(self, size: int) -> None:
        self._until = [0.0] * size
        self._limited = [False] * size
        self._next = 0
        self._tried_at = 0.0
        """When a refused credential was tried last."""

    @property
    def is_rested(self) -> bool:
        """Whether there is one credential and it is usable, if that is known without the clock."""
        return self._until == [0.0]

    def take(self, now: float, *, is_last: bool = False) -> int | None:
        """Number of the next usable credential; None where all rest.

        `is_last`: no other provider can answer the call, so it may try a refused credential.
        """
        index = self._take_usable(now)
        if index is None and is_last and self._may_probe(now):
            self._tried_at = now
            refused = (i for i, limited in enumerate(self._limited) if not limited)
            # the one that is usable first was refused first
            return min(refused, key=self._until.__getitem__)
        return index

    def may_try(self, now: float) -> bool:
        """Return whether a call that no other provider can answer gets a credential."""
        return self.count_rest(now) == 0 or self._may_probe(now)

    def _may_probe(self, now: float) -> bool:
        return now >= self._tried_at + PROBE_REFUSED_SECONDS and not all(self._limited)

    def _take_usable(self, now: float) -> int | None:
        size = len(self._until)
        if size == 1:
            if self._until[0] > now:
                return None
            self._until[0] = 0.0
            return 0
        for step in range(size):
            index = (self._next + step) % size
            if self._until[index] <= now:
                self._next = (index + 1) % size
                return index
        return None

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit was the last thing that a credential was left out for."""
        return any(self._limited)

    def rest(self, index: int, seconds: float, now: float, *, limited: bool) -> None:
        """Leave a credential out for a time: a `limited` one, or one that was refused."""
        self._until[index] = max(self._until[index], now + min(seconds, LONGEST_RETRY_SECONDS))
        self._limited[index] = limited
        if not limited:
            self._tried_at = now

    def restore(self, index: int) -> None:
        """Note that the provider has accepted a credential, which it may have refused before."""
        if not self._limited[index]:
            self._until[index] = 0.0

    def count_rest(self, now: float) -> float:
        """Return seconds until a credential is usable, 0 if one is now."""
        return max(0.0, min(self._until) - now)
