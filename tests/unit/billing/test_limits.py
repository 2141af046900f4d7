"""The words and figures of a spent budget: whose, how much, what is left, and until when."""

import pytest

from gateway_core.api.limits import Window
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.limits import describe_failure, describe_limit

RESET = 1_795_392_000  # 2026-11-23T00:00:00Z


def state(window: Window = "weekly", *, limit: int = 5_000_000, **known: int | None) -> BudgetState:
    told = {"used": 4_800_000, "held": 0, "reset": RESET, **known}
    return BudgetState(Budget("key/key-a", limit, window), **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "limit_text", "reset_text"),
    [
        ("1h", "5.00 USD in any hour", "What was spent begins to count no more at 2026-11-23T"),
        ("1d", "5.00 USD in any 24 hours", "What was spent begins to count no more at 2026"),
        ("7d", "5.00 USD in any 7 days", "What was spent begins to count no more at 2026"),
        ("daily", "5.00 USD a day (UTC)", "It resets at 2026-11-23T00:00:00Z."),
        ("weekly", "5.00 USD a week (from Monday, UTC)", "It resets at 2026-11-23T00:00:00Z."),
        ("monthly", "5.00 USD a month (UTC)", "It resets at 2026-11-23T00:00:00Z."),
    ],
)
def test_a_client_reads_how_much_in_which_window_and_until_when(
    window: Window, limit_text: str, reset_text: str
) -> None:
    text = describe_limit(state(window), "this key", 500_000)
    assert text.startswith(f"The credit limit of this key, {limit_text}, does not cover this call")
    assert "it needs 0.50 USD, 0.20 USD are left, 4.80 USD are spent." in text
    assert reset_text in text


def test_a_lifetime_never_resets() -> None:
    text = describe_limit(state("lifetime", reset=None), "this key", 500_000)
    assert "5.00 USD in all" in text
    assert text.endswith("It never resets; an admin can raise it.")


def test_refusal_tells_reserved_from_spent() -> None:
    text = describe_limit(state(used=0, held=4_900_000), 'guardrail "Team"', 500_000)
    assert text.startswith('The credit limit of guardrail "Team", ')
    assert "0.10 USD are left, 0.00 USD are spent and 4.90 USD reserved by calls under way." in text


def test_a_trailing_window_without_spending_has_nothing_to_wait_for() -> None:
    spent_nothing = state("1h", used=0, limit=100_000)
    assert describe_limit(spent_nothing, "this key", 500_000).endswith(
        "Nothing of it is spent; an admin can raise it."
    )
    held = state("1h", used=0, held=100_000, limit=100_000)
    assert describe_limit(held, "this key", 500_000).endswith(
        "More may be left once the calls under way have ended."
    )


def test_no_more_than_nothing_is_left() -> None:
    assert "0.00 USD are left" in describe_limit(state(limit=1_000_000), "this key", 1)


def test_a_failure_has_cents_the_window_and_its_reset() -> None:
    assert describe_failure(state(used=4_809_999, held=1)) == {
        "limitCents": 500,
        "usedCents": 481,
        "resetTime": "2026-11-23T00:00:00Z",
        "window": "weekly",
    }


def test_a_failure_by_a_lifetime_has_no_reset() -> None:
    assert "resetTime" not in describe_failure(state("lifetime", reset=None))


def test_a_budget_without_a_limit_cannot_be_spent() -> None:
    rate = BudgetState(Budget("key/key-a", requests_per_minute=1), 0, 0, None)
    with pytest.raises(ValueError, match="key/key-a has no limit"):
        describe_failure(rate)
