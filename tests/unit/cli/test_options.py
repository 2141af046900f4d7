"""Parsers of money, times and periods on the command line."""

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gateway_cli.options import (
    parse_change,
    parse_day,
    parse_dollars,
    parse_moment,
    parse_period,
    parse_since,
)
from gateway_core.api.money import MAX_MICROS, to_decimal_text


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("12", 12_000_000),
        ("12.5", 12_500_000),
        ("12.50", 12_500_000),
        ("$12.50", 12_500_000),
        ("0.000001", 1),
        ("0.1", 100_000),
        ("9007199254.740991", MAX_MICROS),
    ],
)
def test_dollars_are_exact(text: str, micros: int) -> None:
    assert parse_dollars(text) == micros


@given(st.integers(0, MAX_MICROS))
def test_printed_amounts_parse_to_the_same(micros: int) -> None:
    assert parse_dollars(to_decimal_text(micros)) == micros


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", "1,000", "12,50", "1e3", "0.0000001", ".5", "5.", "inf", "\u0661\u0662", "$"],
)
def test_invalid_amount_shows_the_format(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"12\.50"):
        parse_dollars(text)


def test_only_a_change_of_money_may_have_a_sign() -> None:
    assert parse_change("-12.50") == -12_500_000
    with pytest.raises(typer.BadParameter, match="sign"):
        parse_dollars("-12.50")
    with pytest.raises(typer.BadParameter) as refused:
        parse_change("-1,000")
    assert "sign" not in refused.value.message


def test_more_than_can_be_counted_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="more than"):
        parse_dollars("9007199254.740992")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("24h", 86_400), ("7D", 604_800), ("2w", 1_209_600)],
)
def test_periods(text: str, seconds: int) -> None:
    assert parse_period(text) == seconds


@pytest.mark.parametrize("text", ["", "1.5h", "-1h", "1y", "1h30m", "soon", "999999999w"])
def test_invalid_period_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_period(text)


def test_moments_are_times_dates_or_periods_from_now() -> None:
    assert parse_moment("2126-01-31T18:00:00+02:00") == "2126-01-31T16:00:00Z"
    assert parse_moment("2126-01-31") == "2126-01-31T00:00:00Z"
    in_a_day = datetime.fromisoformat(parse_moment("1d")) - datetime.now(UTC)
    assert timedelta(hours=23, minutes=59) < in_a_day <= timedelta(days=1)


@pytest.mark.parametrize("text", ["2126-01-31T18:00:00", "2020-01-01", "tomorrow", "2126-13-01"])
def test_invalid_or_past_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_moment(text)


def test_days() -> None:
    assert parse_day("2026-11-21") == "2026-11-21"
    assert parse_day("2026-11-21T23:30:00-02:00") == "2026-11-22"
    week_ago = (datetime.now(UTC) - timedelta(days=7)).date().isoformat()
    assert parse_day("7d") == week_ago
    for text in ("2026-11-31", "21.11.2026", "today"):
        with pytest.raises(typer.BadParameter):
            parse_day(text)


def test_period_shorter_than_a_day_is_no_day() -> None:
    with pytest.raises(typer.BadParameter, match="usage is counted by UTC days"):
        parse_day("15m")


def test_since_takes_times_dates_and_periods_before_now() -> None:
    assert parse_since("2026-11-21T18:00:00+02:00") == "2026-11-21T16:00:00Z"
    assert parse_since("2026-11-21") == "2026-11-21T00:00:00Z"
    ago = datetime.now(UTC) - datetime.fromisoformat(parse_since("15m"))
    assert timedelta(minutes=15) <= ago < timedelta(minutes=16)
    with pytest.raises(typer.BadParameter, match="15m or 7d for a time before now"):
        parse_since("lately")
