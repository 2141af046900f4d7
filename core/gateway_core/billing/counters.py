"""Arguments and results of the counters (`redis_counters`), and how scripts take and return them.

Amounts are micro-dollars.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from gateway_core.api.errors import RateState
from gateway_core.api.limits import Window
from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.windows import DAY, HOUR, MINUTE, Buckets, find_reset, find_span
from gateway_core.redis.scripts import Argument


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount reserved for one task or call until it is settled or released.

    It also counts in the budgets of its `subjects` (`api.limits.list_subjects`), as the charge
    will. `age` is the seconds since a stored hold was taken, by the store's clock.
    """

    task: str
    micros: int
    subjects: tuple[str, ...] = ()
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one key or guardrail: micro-dollars in a window, and paid calls a minute."""

    subject: str
    limit: int | None = None
    window: Window | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetState:
    """State of a budget: charged in its window, held now, and when the window's sum decreases.

    `reset` is Unix seconds; None for a lifetime.
    """

    budget: Budget
    used: int
    held: int
    reset: int | None


RateUse = Literal["count", "look", "skip"]
"""How a call uses the rates: `count` it if it passes; `look`, since it is refused anyway; `skip`,
since it has passed them already."""

FreeRate = Literal["management", "storage", "tools"]
"""Rates of calls that cost nothing: Platform Management; creates of Files, Uploads and temporary
files together (contract §12.1a); calls of MCP tools that read."""


@dataclass(frozen=True, slots=True)
class AdmissionCall:
    """One paid call to admit: counted in the rates, and with a `hold` reserving money.

    `funds` is everything ever paid into the account; None for an unlimited account. Each of
    `budgets` must allow the call: its calls a minute unless `rate` is `skip`, its limit if there is
    a hold.
    """

    account: str
    requests_per_minute: int
    hold: Hold | None
    funds: int | None
    rate: RateUse = "count"
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """Result of an admission. At most one of the refusals is set, and `held` is False then.

    `rate_exceeded`: a rate refused the call, for `retry_after` seconds. `exceeded`: the first
    budget that has no room for the hold, without it. `underfunded`: the balance has none, of which
    `left` micros are there. `busy`: another hold has the task's name. `stale`: the account's money
    must be rebuilt first.
    A call that is refused by `rate_exceeded`, `exceeded` or `stale` counts in no rate, and `rate`
    is as if it did. `rate` is the tightest of the account's and the budgets' (§12.4): the one with
    the least left, among equals the one that is free again last.
    """

    rate: RateState
    rate_exceeded: bool = False
    retry_after: int = 0
    underfunded: bool = False
    left: int = 0
    held: bool = False
    stale: bool = False
    busy: bool = False
    exceeded: BudgetState | None = None


@dataclass(frozen=True, slots=True)
class Spending:
    """An account's sums: charged in total, held now, and charged on the UTC day asked for."""

    charged: int
    held: int
    charged_today: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """An account's money according to the objects; the input of a rebuild.

    `charged` is the sum of all days, including those that `by_day` (`2026-11-21` -> micros) leaves
    out. `holds` maps tasks to micros, `subjects` tasks to the subjects of their holds, `spent`
    subjects to their charges, and `journals` processes to the last sequence of their journal that
    is in all of these.
    """

    charged: int
    by_day: Mapping[str, int] = field(default_factory=dict)
    holds: Mapping[str, int] = field(default_factory=dict)
    subjects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spent: Mapping[str, Buckets] = field(default_factory=dict)
    journals: Mapping[str, int] = field(default_factory=dict)


CallState = Literal["held", "charged", "gone"]
"""State of an object-less call: its hold exists, it was charged recently, or neither."""
CALL_STATES: tuple[CallState, ...] = ("gone", "held", "charged")
"""As the scripts number them."""


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """States of calls in the order asked for, and the counted part of their process's journal.

    `counted` is the sequence up to which the last rebuild read the journal; 0 for nothing.
    """

    states: tuple[CallState, ...]
    counted: int


@dataclass(frozen=True, slots=True)
class CallCharge:
    """Cost of ended calls in the minute of `at` (aware).

    Their records are in the object `sequence` of their process's journal, or in none yet for 0.
    """

    at: datetime
    micros: int
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class LeaseCall:
    """Ends the hold `ended` and takes `hold`, which has money and slots in advance if there is far
    more left of every limit.

    The `charges` of the ended hold are made as by `Counters.settle_calls`. `hold` is what calls
    under way and costs need, and is taken whatever the limits; None for no further hold. `spare`
    micro-dollars are wanted beside it, and `slots`, calls to count for `seconds` in advance.
    `unused` slots that were counted under `stamp` are given back.
    """

    account: str
    requests_per_minute: int
    process: str
    funds: int | None = None
    budgets: tuple[Budget, ...] = ()
    ended: str | None = None
    charges: tuple[CallCharge, ...] = ()
    hold: Hold | None = None
    spare: int = 0
    slots: int = 0
    seconds: float = 0.0
    stamp: int = 0
    unused: int = 0


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """How the ended hold stood, and what was granted: both `spare` and `slots`, or neither.

    `ended` is `held` where it was charged now. `rate` is the tightest, without the granted slots.
    """

    ended: CallState
    spare: int
    slots: int
    stamp: int
    rate: RateState


FAR = 8
"""A lease gets at most this part of what is left of a limit."""
LEAST_SLOTS = 128
"""No slots are granted in advance where fewer than `FAR` times as many calls are left."""
LEAST_SPARES = 4
"""No money is granted where less than a part of 1 / `LEAST_SPARES` of what is wanted is far."""

KEPT_MINUTES, KEPT_HOURS, KEPT_DAYS = 64, 172, 34
"""Buckets kept of a subject: a little more than the longest window of each grain."""
KEPT_DATES = 9
"""Days whose sum is kept of an account."""

_LETTERS = {"minutes": b"m", "hours": b"h", "days": b"d", "total": b"t"}


def check_micros(micros: int) -> int:
    """`micros` if Lua counts it exactly (doubles) and it is not negative. ValueError."""
    if not 0 <= micros <= MAX_MICROS:
        raise ValueError(f"{micros} is no amount of micro-dollars")
    return micros


def join_subjects(subjects: Sequence[str]) -> str:
    """Subjects as the scripts take them, with a space before each."""
    return "".join(f" {subject}" for subject in subjects)


def describe_window(budget: Budget, now: float) -> tuple[Argument, ...]:
    """Return the budget's window, its grain, and its first bucket at `now` (Unix seconds)."""
    return _describe_window(budget, int(now // MINUTE))


@lru_cache(maxsize=4096)
def _describe_window(budget: Budget, minute: int) -> tuple[Argument, ...]:
    window = budget.window or "lifetime"
    span = find_span(window, datetime.fromtimestamp(minute * MINUTE, UTC))
    return window, _LETTERS[span.grain], span.first


def describe_budgets(budgets: tuple[Budget, ...], now: float) -> tuple[Argument, ...]:
    """Return the arguments of `admit` for all budgets of a call."""
    return _describe_budgets(budgets, int(now // MINUTE)) if budgets else ()


# all calls of one key in one minute share an entry
@lru_cache(maxsize=4096)
def _describe_budgets(budgets: tuple[Budget, ...], minute: int) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    for budget in budgets:
        arguments += (
            budget.subject,
            b"" if budget.requests_per_minute is None else budget.requests_per_minute,
            b"" if budget.limit is None else budget.limit,
            *_describe_window(budget, minute),
        )
    return tuple(arguments)


def describe_charge(charge: CallCharge) -> tuple[Argument, ...]:
    """Sequence, amount, dates and buckets of a charge, as the scripts take them."""
    moment = charge.at.astimezone(UTC)
    seconds, oldest = int(moment.timestamp()), moment.date() - timedelta(days=KEPT_DATES)
    return (
        charge.sequence,
        check_micros(charge.micros),
        moment.date().isoformat(),
        oldest.isoformat(),
        seconds // MINUTE,
        seconds // HOUR,
        seconds // DAY,
    )


def describe_lease(call: LeaseCall) -> tuple[Argument, ...]:
    """Arguments of the script `lease` between those of charging and the budgets."""
    hold = call.hold
    return (
        call.ended or b"",
        hold.task if hold else b"",
        check_micros(hold.micros) if hold else 0,
        join_subjects(hold.subjects) if hold else b"",
        check_micros(call.spare),
        call.slots,
        int(call.seconds * 1_000_000),
        call.stamp,
        call.unused,
        call.requests_per_minute,
        b"" if call.funds is None else call.funds,
        FAR,
        LEAST_SLOTS,
        LEAST_SPARES,
    )


def read_lease(reply: Sequence[Any]) -> LeaseAnswer:
    """Return the answer in a reply of the script `lease`."""
    ended, spare, slots, stamp, limit, remaining, reset = reply
    rate = RateState(limit, remaining, reset)
    return LeaseAnswer(CALL_STATES[ended], spare, slots, int(stamp), rate)


def describe_oldest(now: float) -> tuple[Argument, ...]:
    """Return the oldest minute, hour and day to keep at `now`."""
    current = int(now)
    return (
        current // MINUTE - KEPT_MINUTES,
        current // HOUR - KEPT_HOURS,
        current // DAY - KEPT_DAYS,
    )


def read_state(budget: Budget, now: float, used: int, held: int, oldest: int) -> BudgetState:
    """Return a budget's state from a reply; `oldest` is the number of its oldest bucket, or -1."""
    oldest_bucket = {oldest: used} if oldest >= 0 else {}
    buckets = Buckets(minutes=oldest_bucket, hours=oldest_bucket)
    reset = find_reset(buckets, budget.window or "lifetime", datetime.fromtimestamp(now, UTC))
    return BudgetState(budget, used, held, None if reset is None else math.ceil(reset.timestamp()))
