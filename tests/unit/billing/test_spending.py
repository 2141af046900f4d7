"""Charges of keys and guardrails: exact while there is room, never less than spent without."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api.limits import Window
from gateway_core.api.usage import MOST_SUBJECTS, GatewayUsage
from gateway_core.billing import spending
from gateway_core.billing.spending import (
    MINUTES_SPENT,
    add_spending,
    roll_up_spending,
    sum_spending,
)
from gateway_core.billing.usage import add_charges, roll_up_day, sum_usage
from gateway_core.billing.windows import Buckets, sum_window
from tests.shares import IS_WHOLE
from tests.unit.billing.usage_harness import make_charge, make_usage

START = datetime(2026, 3, 27, 20, 30, tzinfo=UTC)
WINDOWS: list[Window] = ["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]


class Book:
    """Usage objects of one account as folds and moved days leave them, beside every charge."""

    def __init__(self) -> None:
        self.now = START
        self.days: dict[str, dict[str, Any]] = {}
        self.before: dict[str, Any] = {}
        self.charges: list[tuple[tuple[str, ...], int, datetime]] = []

    def charge(self, subjects: tuple[str, ...], micros: int) -> None:
        self.charges.append((subjects, micros, self.now))
        day, number = self.now.date().isoformat(), len(self.charges)
        minute = self.now.hour * 60 + self.now.minute
        new = make_charge(str(number), micros, minute, day=day, subjects=subjects)
        status = add_charges(self.days.get(day, {}), day, [new], self.now)
        self.days[day] = {**status, "pending": []}

    def move_days(self) -> None:
        """What is older than nine days goes to the sum of past days, its object left or not."""
        last = (self.now - timedelta(days=9)).date().isoformat()
        for day in sorted(day for day in self.days if day <= last):
            self.before = roll_up_day(self.before, make_usage(self.days.pop(day), day))

    def read(self, subject: str, *, also: tuple[str, ...] = ()) -> Buckets:
        objects = [make_usage(status, day) for day, status in self.days.items()]
        objects.append(make_usage(self.before, None))
        for obj in objects:
            GatewayUsage.model_validate(obj)
        found = sum_usage(objects, also).spent.get(subject)
        return found.freeze() if found else Buckets()

    def sum_naively(self, subject: str, window: Window) -> int:
        """The same by adding up every charge in the buckets of its own moment."""
        grains: list[defaultdict[int, int]] = [defaultdict(int) for _ in range(3)]
        mine = [(at, micros) for names, micros, at in self.charges if subject in names]
        for at, micros in mine:
            for grain, seconds in zip(grains, (60, 3600, 86400), strict=True):
                grain[int(at.timestamp() // seconds)] += micros
        return sum_window(Buckets(*grains, total=sum(m for _, m in mine)), window, self.now)


@contextmanager
def room_for(subjects: int, bytes_: int) -> Iterator[None]:
    with (
        patch.object(spending, "MOST_SUBJECTS", subjects + 2),
        patch.object(spending, "MOST_BUCKET_BYTES", bytes_),
    ):
        yield


NAMES = ("key/a", "key/b", "key/c", "key/d", "guardrail/x", "guardrail/y", "guardrail/z")
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 1, 7, 30, 59, 61, 600, 1440, 4000, 15000]),
        st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple),
        st.integers(0, 1000),
        st.booleans(),
    ),
    max_size=40,
)


def play(steps: list[tuple[int, tuple[str, ...], int, bool]]) -> Book:
    book = Book()
    for minutes, subjects, micros, move in steps:
        book.now += timedelta(minutes=minutes)
        if move:
            book.move_days()
        book.charge(subjects, micros)
    return book


@settings(max_examples=150 if IS_WHOLE else 50)
@given(STEPS)
def test_windows_are_exact_while_there_is_room(steps: Any) -> None:
    book = play(steps)
    book.move_days()
    for name in NAMES:
        buckets = book.read(name)
        for window in WINDOWS:
            assert sum_window(buckets, window, book.now) == book.sum_naively(name, window), window


@settings(max_examples=150 if IS_WHOLE else 50)
@given(STEPS, st.integers(1, 5), st.sampled_from([40, 120, 10**6]))
def test_windows_without_room_are_not_less_than_spent(
    steps: Any, subjects: int, bytes_: int
) -> None:
    with room_for(subjects, bytes_):
        book = play(steps)
        book.move_days()
        for name in NAMES:
            buckets = book.read(name, also=NAMES)
            for window in WINDOWS:
                told = sum_window(buckets, window, book.now)
                assert told >= book.sum_naively(name, window), window


def test_merged_bucket_counts_longer_by_at_most_its_width() -> None:
    with room_for(10, 60):
        book = Book()
        for _ in range(12):
            book.charge(("key/a",), 100)
            book.now += timedelta(minutes=1)
        minutes = book.read("key/a").minutes
        assert len(minutes) < 12
        assert sum(minutes.values()) == 1200
        assert max(minutes) < book.now.timestamp() // 60


def test_run_of_two_shared_guardrails_counts_once() -> None:
    with room_for(1, 10**6):
        book = Book()
        book.charge(("key/a", "guardrail/x", "guardrail/y"), 5)
        assert book.read("guardrail/x", also=NAMES).total == 5
        assert book.read("key/b", also=NAMES).total == 0


def test_failed_run_dates_the_last_use_of_its_key() -> None:
    book = Book()
    book.charge(("key/a",), 0)
    [entry] = book.days["2026-03-27"]["spent"]
    assert entry == {"subject": "key/a", "chargedMicros": 0, "lastTime": "2026-03-27T20:30:00Z"}


def fill(keys: int, minutes: int, micros: int = 300_000, pad: int = 34) -> list[dict[str, Any]]:
    """Every key charged in each of the last minutes of a day, folded each minute."""
    spent: list[dict[str, Any]] = []
    names = [f"key/{str(n).rjust(pad - 4, 'k')}" for n in range(keys)]
    for minute in range(1440 - minutes, 1440):
        runs = [make_charge(name, micros, minute, subjects=(name,)) for name in names]
        spent = add_spending(spent, runs, minute - MINUTES_SPENT)
    return spent


@pytest.mark.parametrize(
    ("spent", "most"),
    [
        pytest.param(lambda: fill(10, 130), 16_000, id="exact minutes of 10 keys"),
        pytest.param(lambda: fill(100, 80), 60_000, id="merged minutes of 100 keys"),
        pytest.param(lambda: fill(MOST_SUBJECTS // 10, 3, 2**53 // 10, 80), 110_000, id="shared"),
    ],
)
def test_spending_of_a_day_stays_below_the_limit_of_etcd(spent: Any, most: int) -> None:
    """In a tenth of the room: an object has at most ten times these bytes."""
    with room_for(MOST_SUBJECTS // 10 - 2, spending.MOST_BUCKET_BYTES // 10):
        table = spent()
    assert len(json.dumps(table, separators=(",", ":"))) < most
    GatewayUsage.model_validate(make_usage({"spent": table}))


def test_sum_of_past_days_stays_below_the_limit_of_etcd() -> None:
    """In a tenth of the room: an object has at most ten times these bytes."""
    names = [f"key/{str(n).rjust(76, 'k')}" for n in range(MOST_SUBJECTS // 10)]
    part = [
        {"subject": name, "chargedMicros": 2**53 // 100, "lastTime": "2026-11-21T12:00:00Z"}
        for name in names
    ]
    before: list[dict[str, Any]] = []
    with room_for(len(names), spending.MOST_BUCKET_BYTES // 10):
        for n in range(40):
            day = (START + timedelta(days=n)).date().isoformat()
            before = roll_up_spending(before, part, day)
            assert len(json.dumps(before, separators=(",", ":"))) < 120_000, day
    status = {"spent": before}
    GatewayUsage.model_validate(make_usage(status, None))
    found = sum_spending([make_usage(status, None)], ())[names[0]].days
    assert sum(found.values()) == 40 * (2**53 // 100), "nothing is dropped"
    for back in (1, 7, 30):
        late = [sum_ for day, sum_ in found.items() if day > max(found) - back]
        assert sum(late) >= back * (2**53 // 100)


def test_sum_has_minutes_of_the_newest_two_days_only() -> None:
    book = Book()
    for _ in range(5):
        book.charge(("key/a",), 1)
        book.now += timedelta(days=1)
    buckets = book.read("key/a")
    assert (len(buckets.minutes), len(buckets.hours), len(buckets.days)) == (2, 5, 5)
    assert sum_spending([], ()) == {}
