"""Texts and figures about a spent budget (contract §9.1, §11.1).

The API uses them to refuse a call, the operator to fail a waiting task.
"""

from datetime import UTC, datetime
from typing import Any

from gateway_core.api.limits import Window
from gateway_core.api.money import ceil_cents, floor_cents, to_decimal_text
from gateway_core.api.times import format_time
from gateway_core.billing.counters import BudgetState
from gateway_core.billing.windows import TRAILING

_WINDOWS: dict[Window, str] = {
    "1h": "in any hour",
    "1d": "in any 24 hours",
    "7d": "in any 7 days",
    "daily": "a day (UTC)",
    "weekly": "a week (from Monday, UTC)",
    "monthly": "a month (UTC)",
    "lifetime": "in all",
}


def describe_limit(state: BudgetState, title: str, micros: int) -> str:
    """Return the limit, what is left of it, and when there is more, for the client.

    `title` is the display name of the key or guardrail; `micros` is what the call needs, which
    `state` does not include. ValueError for a budget without a limit.
    """
    limit, window = _read_budget(state)
    left = max(0, limit - state.used - state.held)
    spent = f"{to_decimal_text(state.used)} USD are spent"
    if state.held:
        spent += f" and {to_decimal_text(state.held)} USD reserved by calls under way"
    return (
        f"The credit limit of {title}, {to_decimal_text(limit)} USD {_WINDOWS[window]}, does not"
        f" cover this call: it needs {to_decimal_text(micros)} USD, {to_decimal_text(left)} USD are"
        f" left, {spent}. {_describe_reset(state, window)}"
    )


def describe_shortage(left: int, micros: int, *, work: str = "call") -> str:
    """Return what is left of a balance that does not cover `micros`, the most that work costs."""
    return (
        f"The balance does not cover this {work}: it needs up to {to_decimal_text(micros)} USD,"
        f" {to_decimal_text(max(0, left))} USD are left."
    )


def describe_failure(state: BudgetState) -> dict[str, Any]:
    """`status.failure.limit` of a task that failed by this budget, its own hold left out.

    `usedCents` is what others have spent, rounded down, and reserved, rounded up, as in the
    balance (§2.4).
    """
    limit, window = _read_budget(state)
    failure: dict[str, Any] = {
        "limitCents": floor_cents(limit),
        "usedCents": floor_cents(state.used) + ceil_cents(state.held),
        "window": window,
    }
    if state.reset is not None:
        failure["resetTime"] = _format(state.reset)
    return failure


def _describe_reset(state: BudgetState, window: Window) -> str:
    if state.reset is None:
        return "It never resets; an admin can raise it."
    if window not in TRAILING:
        return f"It resets at {_format(state.reset)}."
    if state.used:
        return f"What was spent begins to count no more at {_format(state.reset)}."
    if state.held:
        return "More may be left once the calls under way have ended."
    return "Nothing of it is spent; an admin can raise it."


def _read_budget(state: BudgetState) -> tuple[int, Window]:
    limit, window = state.budget.limit, state.budget.window
    if limit is None or window is None:
        raise ValueError(f"{state.budget.subject} has no limit")
    return limit, window


def _format(moment: int) -> str:
    return format_time(datetime.fromtimestamp(moment, UTC))
