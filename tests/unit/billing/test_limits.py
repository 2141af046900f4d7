"""The words and figures of a spent budget: whose, how much, what is left, and until when."""

import pytest

from gateway_core.api.limits import Window
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.limits import describe_failure, describe_limit

RESET = 1_795_392_000  # 2026-11-23T00:00:00Z


def state(window: Window = "weekly", *, limit: int = 5_000_000, **known: int | None) -> BudgetState:
    figures = {"used": 4_800_000, "held": 0, "reset": RESET, **known}
    return BudgetState(Budget("key/key-a", limit, window), **figures)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "limit", "end"),
    [
        (state("1h"), "5.00 USD in any hour", "to count no more at 2026-11-23T00:00:00Z."),
        (state("1d"), "5.00 USD in any 24 hours", "to count no more at 2026-11-23T00:00:00Z."),
        (state("7d"), "5.00 USD in any 7 days", "to count no more at 2026-11-23T00:00:00Z."),
        (state("daily"), "5.00 USD a day (UTC)", "It resets at 2026-11-23T00:00:00Z."),
        (state(), "5.00 USD a week (from Monday, UTC)", "It resets at 2026-11-23T00:00:00Z."),
        (state("monthly"), "5.00 USD a month (UTC)", "It resets at 2026-11-23T00:00:00Z."),
        (
            state("lifetime", reset=None),
            "5.00 USD in all",
            "It never resets; an admin can raise it.",
        ),
        (state("1h", used=0, limit=100), "0.0001 USD", "is spent; an admin can raise it."),
        (
            state("1h", used=0, held=100, limit=100),
            "0.0001 USD",
            "More may be left once the calls under way have ended.",
        ),
    ],
)
def test_refusal_names_limit_window_and_reset(budget: BudgetState, limit: str, end: str) -> None:
    text = describe_limit(budget, "this key", 500_000)
    assert text.startswith(f"The credit limit of this key, {limit}")
    assert "does not cover this call: it needs 0.50 USD, " in text
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("budget", "figures"),
    [
        (state(), "0.20 USD are left, 4.80 USD are spent."),
        (state(limit=1_000_000), "0.00 USD are left, 4.80 USD are spent."),
        (
            state(used=0, held=4_900_000),
            "0.10 USD are left, 0.00 USD are spent and 4.90 USD reserved by calls under way.",
        ),
    ],
)
def test_refusal_tells_reserved_from_spent(budget: BudgetState, figures: str) -> None:
    assert figures in describe_limit(budget, 'guardrail "Team"', 500_000)


def test_failure_has_cents_window_and_reset() -> None:
    assert describe_failure(state(used=4_809_999, held=1)) == {
        "limitCents": 500,
        "usedCents": 481,
        "resetTime": "2026-11-23T00:00:00Z",
        "window": "weekly",
    }
    assert "resetTime" not in describe_failure(state("lifetime", reset=None))


def test_budget_without_a_limit_cannot_be_spent() -> None:
    rate = BudgetState(Budget("key/key-a", requests_per_minute=1), 0, 0, None)
    with pytest.raises(ValueError, match="key/key-a has no limit"):
        describe_failure(rate)
