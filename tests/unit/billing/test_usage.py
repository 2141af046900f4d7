"""Sums of what ended runs cost: each counted once, and never more than an object can hold."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.usage import (
    MINUTES_KEPT,
    MOST_PENDING,
    MOST_ROWS,
    GatewayUsage,
)
from gateway_core.billing.charges import Charge, read_charge
from gateway_core.billing.usage import (
    add_charges,
    drop_pending,
    list_pending,
    roll_up_day,
    sum_usage,
)
from tests.unit.billing.usage_harness import DAY, make_charge, make_usage

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def total(parts: Any) -> int:
    return sum(part["chargedMicros"] for part in parts)


CHARGES = st.lists(
    st.builds(
        make_charge,
        st.integers(0, 60).map(str),
        st.integers(0, 10**6),
        st.integers(0, 1439),
        key_name=st.sampled_from([None, "a", "b"]),
        failed=st.booleans(),
    ),
    max_size=40,
    unique_by=lambda charge: charge.uid,
)


@given(CHARGES, st.lists(st.integers(0, 60).map(str), max_size=40))
def test_every_charge_is_in_every_sum_once(charges: list[Charge], repeats: list[str]) -> None:
    again = [charge for charge in charges if charge.uid in repeats]
    status = add_charges({}, DAY, charges, NOON)
    status = add_charges(status, DAY, again, NOON)
    expected = sum(charge.micros for charge in charges)
    assert status["chargedMicros"] == total(status["hours"]) == total(status["rows"]) == expected
    assert status["requests"] == len(charges)
    assert status["failed"] == sum(charge.failed for charge in charges)
    assert list_pending(status) == {charge.uid: charge.name for charge in charges}
    assert GatewayUsage.model_validate(make_usage(status)).status.charged_micros == expected


@given(CHARGES, st.integers(0, 1439 + 600))
def test_minutes_are_kept_for_two_hours(charges: list[Charge], now: int) -> None:
    moment = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(minutes=now)
    status = add_charges({}, DAY, charges, moment)
    recent = [charge for charge in charges if charge.minute >= now - MINUTES_KEPT]
    assert total(status["minutes"]) == sum(charge.micros for charge in recent)
    assert {part["minute"] for part in status["minutes"]} == {charge.minute for charge in recent}


def test_minutes_are_bounded_where_the_clocks_of_owners_differ() -> None:
    noon = 12 * 60
    ahead = [make_charge(f"a{m}", minute=m) for m in range(noon - 120, noon + 1)]
    behind = [make_charge(f"b{m}", minute=m) for m in range(noon - 125, noon - 119)]
    status = add_charges({}, DAY, ahead, NOON)
    status = add_charges(status, DAY, behind, NOON - timedelta(minutes=5))
    assert GatewayUsage.model_validate(make_usage(status)).status.charged_micros == 127 * 5
    assert [part["minute"] for part in status["minutes"]] == list(range(noon - 121, noon + 1))


def test_breakdown_is_bounded_and_sums_the_rest() -> None:
    charges = [make_charge(str(n), key_name=f"key-{n}") for n in range(MOST_ROWS + 50)]
    status = add_charges({}, DAY, charges, NOON)
    assert len(status["rows"]) == MOST_ROWS + 1
    assert status["rows"][-1] == {"requests": 50, "failed": 0, "chargedMicros": 250}
    more = add_charges(status, DAY, [make_charge("x", key_name="key-0")], NOON)
    assert more["rows"][0]["requests"] == 2


def test_pending_name_is_dropped_once_marked() -> None:
    status = add_charges({}, DAY, [make_charge("a"), make_charge("b")], NOON)
    dropped = drop_pending(status, {"a", "unknown"})
    assert list_pending(dropped) == {"b": "task-b"}
    assert dropped["chargedMicros"] == status["chargedMicros"]


@pytest.mark.parametrize(
    ("ended", "day", "minute"),
    [
        ("2026-11-21T23:59:59Z", "2026-11-21", 1439),
        ("2026-11-22T00:00:00Z", "2026-11-22", 0),
        ("2026-11-22T01:30:00+02:00", "2026-11-21", 1410),
        (None, "2026-11-20", 600),
    ],
)
def test_run_counts_on_the_utc_day_of_its_end(ended: str | None, day: str, minute: int) -> None:
    status = {"phase": "Completed", "chargedMicros": 7}
    task = {
        "metadata": {"name": "task-a", "uid": "u", "creationTimestamp": "2026-11-20T10:00:00Z"},
        "spec": {
            "request": {"accountName": "demo", "service": "sim", "action": "a", "modelId": "m"}
        },
        "status": {**status, **({"completionTime": ended} if ended else {})},
    }
    charge = read_charge(task)
    assert (charge.day, charge.minute, charge.micros) == (day, minute, 7)
    assert (charge.key_name, charge.operation, charge.failed) == (None, "sim/a", False)


def test_day_is_rolled_up_once() -> None:
    day = make_usage(add_charges({}, DAY, [make_charge("a")], NOON))
    once = roll_up_day({}, day)
    assert (once["chargedMicros"], once["throughDay"], once["cost"]) == (5, DAY, "0.000005")
    assert roll_up_day(once, day) == once
    earlier = make_usage({"chargedMicros": 3}, "2026-11-20")
    both = roll_up_day(once, earlier)
    assert (both["chargedMicros"], both["throughDay"]) == (8, DAY)


def test_day_that_is_rolled_up_and_still_there_counts_once() -> None:
    yesterday = make_usage({"chargedMicros": 7}, "2026-11-20")
    day = make_usage(add_charges({}, DAY, [make_charge("a")], NOON))
    before = make_usage(roll_up_day({"chargedMicros": 100}, day), None)
    balance = sum_usage([day, yesterday, before])
    assert balance.charged == 112
    assert balance.by_day == {DAY: 5, "2026-11-20": 7}
    assert balance.aggregated == {"a"}
    assert sum_usage([yesterday, before]).charged == 112


def test_account_without_usage_has_no_charge() -> None:
    assert sum_usage([]).charged == 0
    assert sum_usage([{**make_usage({}), "status": None}]).charged == 0


@pytest.mark.parametrize(
    ("name", "status", "requests", "failed"),
    [
        ("task-a", {"phase": "Completed", "upstream": {"jobId": "j"}}, 1, 0),
        ("task-a", {"phase": "Failed", "upstream": {"jobId": "j"}}, 1, 1),
        ("task-a", {"phase": "Failed"}, 0, 0),
        ("batch-a", {"counts": {"completed": 3, "failed": 7, "sent": 5}}, 5, 2),
        ("batch-a", {"counts": {"completed": 0, "failed": 7, "sent": 0}}, 0, 0),
        ("batch-a", {"counts": {"completed": 3, "failed": 7}}, 10, 7),
    ],
)
def test_requests_are_calls_that_reached_an_upstream(
    name: str, status: dict[str, Any], requests: int, failed: int
) -> None:
    """A batch counts the lines that were sent (contract 9.0)."""
    about = {"service": "sim", "modelId": "m"}
    run = {
        "metadata": {"name": name, "uid": "u", "creationTimestamp": "2026-11-20T10:00:00Z"},
        "spec": {"request": {"accountName": "demo", "action": "a", **about}},
        "status": {**about, **status},
    }
    charge = read_charge(run)
    assert (charge.requests, charge.failed) == (requests, failed)
    folded = add_charges({}, "2026-11-20", [charge], NOON)
    assert folded["requests"] == requests
    assert len(folded["rows"]) == (requests > 0)
    assert list_pending(folded) == {"u": name}, "it is not folded again"


def test_full_object_is_well_below_the_limit_of_etcd() -> None:
    charges = []
    for n in range(MOST_PENDING):
        uid, key = str(n).rjust(36, "0"), f"key-{n}".ljust(40, "x")
        charge = make_charge(uid, 10**9, n % 1440, name=f"task-{n:026}", key_name=key)
        charges.append(charge)
    assert len(repr(add_charges({}, DAY, charges, NOON))) < 128_000
