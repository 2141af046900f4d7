"""What `RedisCounters` tells the scripts of budgets and charges, and what their answers mean."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway_core.api.limits import Window
from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.windows import DAY, HOUR, MINUTE, Buckets, Span, find_reset, find_span
from gateway_core.redis.scripts import Argument

KEPT_MINUTES, KEPT_HOURS, KEPT_DAYS = 64, 172, 34
"""Buckets kept of a subject: a little more than the longest window of each grain counts."""
KEPT_DATES = 9
"""Days whose sum is kept of an account."""

_FOR_EVER: Window = "lifetime"
_LETTERS = {"minutes": b"m", "hours": b"h", "days": b"d", "total": b"t"}


def check_micros(micros: int) -> int:
    """`micros`, if Lua can count it exactly and it adds to no balance by being below zero."""
    if not 0 <= micros <= MAX_MICROS:
        raise ValueError(f"{micros} is no amount of micro-dollars")
    return micros


def join_subjects(subjects: Sequence[str]) -> str:
    """Subjects as the scripts take them, a space before each; no subject has one in it."""
    return " " + " ".join(subjects) if subjects else ""


def describe_window(budget: Budget, now: float) -> tuple[Argument, ...]:
    """The budget's window, its grain, and its first bucket at `now` (Unix seconds)."""
    window = budget.window or _FOR_EVER
    span = _find_span(window, int(now // MINUTE))
    return window, _LETTERS[span.grain], span.first


@lru_cache(maxsize=64)
def _find_span(window: Window, minute: int) -> Span:
    """Every window stands still for a minute."""
    return find_span(window, datetime.fromtimestamp(minute * MINUTE, UTC))


def describe_budgets(budgets: tuple[Budget, ...], now: float) -> tuple[Argument, ...]:
    """What the admission is told of all budgets of a call."""
    return _describe_budgets(budgets, int(now // MINUTE)) if budgets else ()


@lru_cache(maxsize=4096)
def _describe_budgets(budgets: tuple[Budget, ...], minute: int) -> tuple[Argument, ...]:
    """Of one key's calls in one minute all but the first find it here."""
    told: list[Argument] = []
    for budget in budgets:
        told += (
            budget.subject,
            b"" if budget.requests_per_minute is None else budget.requests_per_minute,
            b"" if budget.limit is None else budget.limit,
            *describe_window(budget, minute * MINUTE),
        )
    return tuple(told)


def describe_moment(at: datetime, now: float) -> tuple[Argument, ...]:
    """The date and the buckets of a charge at `at` (aware), and what is forgotten at `now`."""
    moment = at.astimezone(UTC)
    seconds, oldest = int(moment.timestamp()), moment.date() - timedelta(days=KEPT_DATES)
    current = int(now)
    return (
        moment.date().isoformat(),
        oldest.isoformat(),
        seconds // MINUTE,
        seconds // HOUR,
        seconds // DAY,
        current // MINUTE - KEPT_MINUTES,
        current // HOUR - KEPT_HOURS,
        current // DAY - KEPT_DAYS,
    )


def read_state(budget: Budget, now: float, used: int, held: int, oldest: int) -> BudgetState:
    """A budget's state from what a script tells; `oldest` is its oldest bucket's number or -1."""
    oldest_one = {oldest: used} if oldest >= 0 else {}
    window = budget.window or _FOR_EVER
    moment = datetime.fromtimestamp(now, UTC)
    reset = find_reset(Buckets(minutes=oldest_one, hours=oldest_one), window, moment)
    return BudgetState(budget, used, held, None if reset is None else math.ceil(reset.timestamp()))
