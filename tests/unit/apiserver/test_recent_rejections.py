"""Recent rate rejections: remembered for a minute at most, and a bounded number of them."""

import pytest

from gateway_apiserver.admission import rates
from gateway_apiserver.admission.rates import RecentRejections
from gateway_core.billing.counters import Budget

BUDGETS = (Budget("key/a", requests_per_minute=1),)


def test_rejection_lasts_until_the_rate_is_free_and_a_minute_at_most() -> None:
    now = 100.0
    full = RecentRejections(lambda: now)
    full.note("short", BUDGETS, 5)
    full.note("long", (), 3600)
    assert full.contains("short", BUDGETS)
    assert not full.contains("short", ())
    now += 5
    assert not full.contains("short", BUDGETS)
    assert full.contains("long", ())
    now += 55
    assert not full.contains("long", ())
    assert len(full) == 0


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MOST_REJECTED", 3)
    full = RecentRejections(lambda: 0.0)
    for name in ("a", "b", "c", "a", "d"):
        full.note(name, (), 60)
    assert [name for name in "abcd" if full.contains(name, ())] == ["a", "c", "d"]
