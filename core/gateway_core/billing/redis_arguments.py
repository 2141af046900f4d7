"""Script arguments of `RedisCounters` for budgets and charges, and the meaning of the replies."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway_core.api.money import MAX_MICROS
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.windows import DAY, HOUR, MINUTE, Buckets, find_reset, find_span
from gateway_core.redis.scripts import Argument

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
    """The budget's window, its grain, and its first bucket at `now` (Unix seconds)."""
    return _describe_window(budget, int(now // MINUTE))


@lru_cache(maxsize=4096)
def _describe_window(budget: Budget, minute: int) -> tuple[Argument, ...]:
    window = budget.window or "lifetime"
    span = find_span(window, datetime.fromtimestamp(minute * MINUTE, UTC))
    return window, _LETTERS[span.grain], span.first


def describe_budgets(budgets: tuple[Budget, ...], now: float) -> tuple[Argument, ...]:
    """The arguments of `admit` for all budgets of a call."""
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


def describe_moment(at: datetime, now: float) -> tuple[Argument, ...]:
    """Date and buckets of a charge at `at` (aware), and the oldest of them to keep at `now`."""
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
    """A budget's state from a reply; `oldest` is the number of its oldest bucket, or -1."""
    oldest_bucket = {oldest: used} if oldest >= 0 else {}
    buckets = Buckets(minutes=oldest_bucket, hours=oldest_bucket)
    reset = find_reset(buckets, budget.window or "lifetime", datetime.fromtimestamp(now, UTC))
    return BudgetState(budget, used, held, None if reset is None else math.ceil(reset.timestamp()))
