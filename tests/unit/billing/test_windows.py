"""Windows of spending at their boundaries, and against a naive model (contract §9.1)."""

import re
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.limits import Window
from gateway_core.billing.windows import Buckets, Span, find_reset, find_span, sum_window

LENGTHS = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7)}
BUCKET = {"1h": timedelta(minutes=1), "1d": timedelta(hours=1), "7d": timedelta(hours=1)}
WINDOWS: list[Window] = ["1h", "1d", "7d", "daily", "weekly", "monthly", "lifetime"]
SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text + "Z" if "T" in text else text + "T00:00:00Z")


def charge(*charges: tuple[datetime, int]) -> Buckets:
    """Buckets as a charge fills them."""
    minutes, hours, days = dict[int, int](), dict[int, int](), dict[int, int]()
    for moment, micros in charges:
        seconds = int(moment.timestamp())
        for parts, size in ((minutes, 60), (hours, 3600), (days, 86400)):
            parts[seconds // size] = parts.get(seconds // size, 0) + micros
    return Buckets(minutes, hours, days, sum(micros for _, micros in charges))


class TestTrailing:
    """A bucket counts until it lies wholly outside."""

    @pytest.mark.parametrize(
        ("window", "charged", "last", "gone"),
        [
            ("1h", "2026-11-21T12:00:00", "2026-11-21T13:00:59", "2026-11-21T13:01:00"),
            ("1h", "2026-11-21T12:00:59", "2026-11-21T13:00:59", "2026-11-21T13:01:00"),
            ("1h", "2026-11-21T23:59:30", "2026-11-22T00:59:59", "2026-11-22T01:00:00"),
            ("1d", "2026-11-21T12:00:00", "2026-11-22T12:59:59", "2026-11-22T13:00:00"),
            ("1d", "2026-11-21T12:59:59", "2026-11-22T12:59:59", "2026-11-22T13:00:00"),
            ("1d", "2028-02-28T23:10:00", "2028-02-29T23:59:59", "2028-03-01T00:00:00"),
            ("7d", "2026-11-21T12:00:00", "2026-11-28T12:59:59", "2026-11-28T13:00:00"),
            ("7d", "2026-12-28T05:00:00", "2027-01-04T05:59:59", "2027-01-04T06:00:00"),
        ],
    )
    def test_charge_leaves_the_window_after_its_last_second(
        self, window: Window, charged: str, last: str, gone: str
    ) -> None:
        spent = charge((at(charged), 7))
        assert sum_window(spent, window, at(charged)) == 7
        assert find_reset(spent, window, at(charged)) == at(gone)
        assert sum_window(spent, window, at(last)) == 7
        assert find_reset(spent, window, at(last)) == at(gone)
        assert sum_window(spent, window, at(gone)) == 0


class TestCalendar:
    @pytest.mark.parametrize(
        ("window", "first", "last", "next_first"),
        [
            ("daily", "2026-11-21", "2026-11-21T23:59:59", "2026-11-22"),
            ("daily", "2026-12-31", "2026-12-31T23:59:59", "2027-01-01"),
            ("daily", "2028-02-29", "2028-02-29T23:59:59", "2028-03-01"),
            # 16 November 2026 is a Monday
            ("weekly", "2026-11-16", "2026-11-22T23:59:59", "2026-11-23"),
            ("weekly", "2026-12-28", "2027-01-03T23:59:59", "2027-01-04"),
            ("monthly", "2026-11-01", "2026-11-30T23:59:59", "2026-12-01"),
            ("monthly", "2026-12-01", "2026-12-31T23:59:59", "2027-01-01"),
            ("monthly", "2027-02-01", "2027-02-28T23:59:59", "2027-03-01"),
            ("monthly", "2028-02-01", "2028-02-29T23:59:59", "2028-03-01"),
            ("monthly", "2100-02-01", "2100-02-28T23:59:59", "2100-03-01"),
        ],
    )
    def test_calendar_window_lasts_from_midnight_to_midnight(
        self, window: Window, first: str, last: str, next_first: str
    ) -> None:
        spent = charge((at(first) - SECOND, 100), (at(first), 3), (at(last), 4))
        for now in (at(first), at(last)):
            assert sum_window(spent, window, now) == 7
            assert find_reset(spent, window, now) == at(next_first)
        assert sum_window(spent, window, at(first) - SECOND) >= 100
        assert sum_window(spent, window, at(next_first)) == 0

    def test_lifetime_has_no_reset(self) -> None:
        spent = charge((at("2020-01-01"), 5), (at("2026-11-21"), 6))
        assert sum_window(spent, "lifetime", at("2099-01-01")) == 11
        assert find_reset(spent, "lifetime", at("2099-01-01")) is None


@pytest.mark.parametrize("window", WINDOWS)
def test_window_does_not_depend_on_the_time_zone_of_the_moment(window: Window) -> None:
    """Days are UTC's wherever the process runs, also on the nights on which its clocks change."""
    for text in ("2026-03-29T00:30:00", "2026-10-25T01:30:00", "2026-11-22T22:00:00"):
        moment = at(text)
        spent = charge((moment - timedelta(hours=3), 3), (moment, 4))
        for hours in (-11, 13):
            elsewhere = moment.astimezone(timezone(timedelta(hours=hours)))
            assert find_span(window, elsewhere) == find_span(window, moment)
            assert sum_window(spent, window, elsewhere) == sum_window(spent, window, moment)
            assert find_reset(spent, window, elsewhere) == find_reset(spent, window, moment)


def test_spans_name_their_buckets_from_the_epoch() -> None:
    now = at("1970-02-05T01:02:03")
    assert find_span("1h", now) == Span("minutes", 35 * 1440 + 2)
    assert find_span("1d", now) == Span("hours", 34 * 24 + 1)
    assert find_span("7d", now) == Span("hours", 28 * 24 + 1)
    assert find_span("daily", now) == Span("days", 35)
    assert find_span("weekly", now) == Span("days", 32), "2 February 1970 is a Monday"
    assert find_span("monthly", now) == Span("days", 31)
    assert find_span("lifetime", now) == Span("total", 0)


def counts(window: Window, charged: datetime, now: datetime) -> bool:
    """The naive model: whether a charge counts, told from the contract's words."""
    if window == "lifetime":
        return True
    if window in LENGTHS:
        size = BUCKET[window]
        begin = charged - (charged - at("1970-01-01")) % size
        return begin + size > now - LENGTHS[window]
    if window == "daily":
        return charged.date() >= now.date()
    if window == "monthly":
        return (charged.year, charged.month) >= (now.year, now.month)
    return charged.isocalendar()[:2] >= now.isocalendar()[:2]


moments = st.datetimes(datetime(2026, 2, 20), datetime(2028, 4, 2), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
offsets = st.one_of(
    st.integers(0, 40 * 86400),
    # where buckets, days and windows end, give or take
    st.builds(
        lambda base, slack: max(0, base + slack),
        st.sampled_from([60, 3600, 3660, 86400, 90000, 7 * 86400, 7 * 86400 + 3600, 31 * 86400]),
        st.integers(-61, 61),
    ),
)


@given(
    window=st.sampled_from(WINDOWS),
    now=moments,
    charges=st.lists(st.tuples(offsets, st.integers(0, 9)), max_size=12),
)
def test_sums_and_resets_are_those_of_a_naive_model(
    window: Window, now: datetime, charges: list[tuple[int, int]]
) -> None:
    made = [(now - timedelta(seconds=ago), micros) for ago, micros in charges]
    spent = charge(*made)

    def total(moment: datetime) -> int:
        return sum(micros for charged, micros in made if counts(window, charged, moment))

    assert sum_window(spent, window, now) == total(now)
    reset = find_reset(spent, window, now)
    if reset is None:
        assert window == "lifetime"
    elif reset == now:
        assert total(now) == 0
    else:
        # It stands until then, and then it is less.
        assert total(reset - SECOND) == total(now)
        assert total(reset) < total(now) or total(now) == 0


def test_settlement_updates_the_sum_of_every_window_that_ends() -> None:
    """A window that the script does not know would keep its sum while charges are added."""
    script = (files("gateway_core.redis") / "lua/charge.lua").read_text()
    ending = set(WINDOWS) - {"lifetime"}
    assert set(get_args(Window)) == set(WINDOWS)
    (table,) = re.findall(r"local WINDOWS = \{(.+)\}\n", script)
    (read,) = re.findall(r"local known = redis.call\('HMGET', key, (.+)\)\n", script)
    names = [name for name, _ in re.findall(r"\{'(\w+)', (\d+)\}", table)]
    assert set(names) == ending
    assert re.findall(r"'(\w+)'", read) == names
