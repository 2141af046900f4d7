"""Prices: one calculation quotes, reserves and charges (§2.7)."""

import ast
import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api import money
from gateway_core.api.price import Price, SecondPrice
from gateway_core.billing import ledger, usage
from gateway_core.billing import prices as pricing
from gateway_core.billing.prices import (
    Unit,
    Usage,
    bound_task,
    charge,
    floor_moment,
    list_units,
    quote,
    select_price,
)
from gateway_core.providers import catalog as pricechecks
from gateway_core.providers import price_list as schedules

RESOLUTIONS = ("540p", "720p", "1080p", "2k", "4k")

rates = st.integers(min_value=0, max_value=10**9)
second_prices = st.lists(
    st.builds(SecondPrice, resolution=st.sampled_from([*RESOLUTIONS, "*"]), micros=rates),
    unique_by=lambda rate: rate.resolution,
    max_size=6,
).map(lambda made: [*(r for r in made if r.resolution != "*"), SecondPrice(micros=7)])
prices = st.builds(Price, per_call_micros=st.none() | rates, per_second=st.none() | second_prices)
all_prices = st.builds(
    Price,
    per_call_micros=st.none() | rates,
    per_second=st.none() | second_prices,
    per_image_micros=st.none() | rates,
)
inputs = st.fixed_dictionaries(
    {
        "duration_seconds": st.integers(min_value=3, max_value=16),
        "output_resolution": st.sampled_from(RESOLUTIONS),
    }
)
counts = st.integers(min_value=0, max_value=10**6)
seconds = st.fractions(min_value=0, max_value=10**4, max_denominator=1000)
bounds = st.builds(
    Usage,
    resolution=st.sampled_from(RESOLUTIONS),
    seconds=seconds,
    images=counts,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Usage, Usage]:
    """A bound, and a usage within it."""
    bound = draw(bounds)
    assert bound.seconds is not None
    assert bound.images is not None
    images = draw(st.integers(min_value=0, max_value=bound.images))
    part = draw(st.fractions(min_value=0, max_value=1, max_denominator=100))
    return bound, replace(bound, seconds=bound.seconds * part, images=images)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def price(**fields: Any) -> Price:
    return Price.model_validate(fields)


def task(seconds: int = 5, resolution: str = "720p") -> Usage:
    return bound_task({"duration_seconds": seconds, "output_resolution": resolution})


def made(seconds: str) -> Usage:
    return Usage(seconds=Fraction(seconds))


HD_AND_OTHERS = [{"resolution": "720p", "micros": 60_000}, {"micros": 100_000}]


@pytest.mark.parametrize(
    ("fields", "usage", "micros"),
    [
        ({"perSecond": HD_AND_OTHERS}, task(), 300_000),
        ({"perSecond": HD_AND_OTHERS}, task(resolution="4k"), 500_000),
        ({"perSecond": [{"micros": 10}]}, bound_task({"duration_seconds": 3}), 30),
        ({"perCallMicros": 5, "perSecond": [{"micros": 10}]}, task(3), 35),
        ({"perCallMicros": 7}, task(16), 7),
        ({"perCallMicros": 0}, bound_task({}), 0),
        ({"perImageMicros": 40_000}, Usage(images=3), 120_000),
    ],
)
def test_quote_is_the_sum_of_its_units(fields: dict[str, Any], usage: Usage, micros: int) -> None:
    assert quote(price(**fields), usage) == micros


@pytest.mark.parametrize(
    ("fields", "usage", "missing"),
    [
        ({"perSecond": [{"resolution": "720p", "micros": 1}]}, task(resolution="4k"), "4k"),
        ({"perSecond": [{"micros": 1}]}, Usage(), "seconds"),
        ({"perImageMicros": 1}, Usage(), "images"),
    ],
)
def test_cost_without_bound_or_price_has_no_quote(
    fields: dict[str, Any], usage: Usage, missing: str
) -> None:
    with pytest.raises(LookupError, match=missing):
        quote(price(**fields), usage)


class TestCharge:
    @settings(max_examples=40)
    @given(prices, inputs)
    def test_quoted_amount_is_charged(self, asked: Price, values: dict[str, Any]) -> None:
        bound = bound_task(values)
        reserved = quote(asked, bound)
        used = made(str(float(values["duration_seconds"])))
        assert charge(asked, bound, used, reserved=reserved) == reserved
        assert charge(asked, bound, Usage(), reserved=reserved) == reserved

    @settings(max_examples=40)
    @given(prices, st.none() | all_prices, inputs, seconds)
    def test_edited_price_does_not_change_the_charge_of_a_complete_result(
        self, asked: Price, edited: Price | None, values: dict[str, Any], more: Fraction
    ) -> None:
        bound = bound_task(values)
        reserved = quote(asked, bound)
        assert bound.seconds is not None
        used = Usage(seconds=bound.seconds + more)
        assert charge(edited, bound, used, reserved=reserved) == reserved

    @settings(max_examples=40)
    @given(all_prices, calls())
    def test_charge_is_at_most_the_quote(self, asked: Price, call: tuple[Usage, Usage]) -> None:
        bound, used = call
        reserved = quote(asked, bound)
        charged = charge(asked, bound, used, reserved=reserved)
        assert 0 <= charged <= reserved
        assert type(charged) is type(reserved) is int

    @settings(max_examples=40)
    @given(
        st.none() | all_prices,
        bounds,
        st.builds(
            Usage,
            seconds=st.none() | st.fractions(),
            images=st.none() | st.integers(),
        ),
        st.integers(min_value=0, max_value=10**12),
    )
    def test_charge_of_nonsense_is_between_zero_and_the_reservation(
        self, asked: Price | None, bound: Usage, used: Usage, reserved: int
    ) -> None:
        assert 0 <= charge(asked, bound, used, reserved=reserved) <= reserved

    @settings(max_examples=40)
    @given(all_prices, calls(), st.fractions(min_value=0, max_value=1, max_denominator=64))
    def test_smaller_usage_costs_no_more(
        self, asked: Price, call: tuple[Usage, Usage], part: Fraction
    ) -> None:
        bound, used = call
        assert used.seconds is not None
        less = replace(
            used,
            seconds=used.seconds * part,
            images=int((used.images or 0) * part),
        )
        reserved = quote(asked, bound)
        cheaper = charge(asked, bound, less, reserved=reserved)
        assert cheaper <= charge(asked, bound, used, reserved=reserved)

    @settings(max_examples=40)
    @given(all_prices, bounds, bounds)
    def test_wider_bound_reserves_no_less(self, asked: Price, one: Usage, other: Usage) -> None:
        assert one.seconds is not None
        assert other.seconds is not None
        wider = replace(
            one,
            seconds=one.seconds + other.seconds,
            images=(one.images or 0) + (other.images or 0),
        )
        assert quote(asked, one) <= quote(asked, wider)

    @pytest.mark.parametrize(
        ("fields", "bound", "used", "charged"),
        [
            ({"perSecond": [{"micros": 100}]}, task(5), made("4.5"), 450),
            # in binary 4.1 * 10 is a little over 41
            ({"perSecond": [{"micros": 1}]}, task(5), made("4.1"), 5),
            ({"perSecond": [{"micros": 10}]}, task(5), made("4.1"), 41),
        ],
    )
    def test_charge_is_the_price_of_what_was_used(
        self, fields: dict[str, Any], bound: Usage, used: Usage, charged: int
    ) -> None:
        asked = price(**fields)
        assert charge(asked, bound, used, reserved=quote(asked, bound)) == charged

    @pytest.mark.parametrize(
        "now",
        [
            None,
            price(perSecond=[{"micros": 250_000}]),
            price(perSecond=[{"micros": 50_000}]),
            price(perSecond=[{"resolution": "4k", "micros": 1}]),
            price(perImageMicros=1),
            price(perCallMicros=2_000_000, perSecond=[{"micros": 0}]),
        ],
    )
    @pytest.mark.parametrize(("done", "due"), [("0", 0), ("5", 500_000), ("10", 1_000_000)])
    def test_changed_price_charges_the_used_part_of_the_reservation(
        self, now: Price | None, done: str, due: int
    ) -> None:
        assert charge(now, task(10), made(done), reserved=1_000_000) == due

    def test_part_of_the_reservation_is_rounded_up(self) -> None:
        assert charge(None, task(3), made("1"), reserved=100) == 34

    def test_largest_of_several_amounts_is_charged(self) -> None:
        bound = Usage(images=4, seconds=Fraction(10))
        assert charge(None, bound, Usage(images=1), reserved=80) == 80
        used = Usage(images=1, seconds=Fraction(5))
        assert charge(None, bound, used, reserved=80) == 40
        assert charge(None, Usage(images=4), Usage(images=1), reserved=80) == 20

    def test_unreported_usage_of_a_removed_model_is_charged_whole(self) -> None:
        assert charge(None, task(5), Usage(), reserved=77) == 77
        assert charge(None, bound_task({}), made("1"), reserved=77) == 77


@pytest.mark.parametrize(
    ("fields", "units"),
    [
        ({"perCallMicros": 0}, (Unit.CALL,)),
        ({"perSecond": [{"micros": 0}]}, (Unit.SECOND,)),
        ({"perImageMicros": 0}, (Unit.IMAGE,)),
        ({"inputPerMillionMicros": 0}, (Unit.TOKEN,)),
        ({"outputPerMillionMicros": 0, "cachedPerMillionMicros": 0}, (Unit.TOKEN,)),
        ({"perCallMicros": 0, "imageInputPerMillionMicros": 0}, (Unit.CALL, Unit.TOKEN)),
        (
            {"perCallMicros": 0, "tiers": [{"abovePromptTokens": 1, "inputPerMillionMicros": 0}]},
            (Unit.CALL, Unit.TOKEN),
        ),
        ({"outputPerMillionMicros": 1, "perCallMicros": 1}, (Unit.CALL, Unit.TOKEN)),
    ],
)
def test_units_of_a_price_are_listed(fields: dict[str, Any], units: tuple[Unit, ...]) -> None:
    assert list_units(price(**fields)) == units


class TestEffectiveTime:
    OLD = price(perCallMicros=1)
    NEW = price(perCallMicros=2, effectiveTime="2027-01-01T00:00:00Z")
    NEWEST = price(perCallMicros=3, effectiveTime="2027-06-01T02:00:00+02:00")

    @pytest.mark.parametrize(
        ("moment", "expected"),
        [
            ("2026-12-31T23:59:59Z", 1),
            ("2027-01-01T00:00:00Z", 2),
            ("2027-01-01T01:00:00+02:00", 1),
            ("2027-05-31T23:59:59Z", 2),
            ("2027-06-01T00:00:00Z", 3),
        ],
    )
    def test_newest_price_in_effect_is_selected(self, moment: str, expected: int) -> None:
        for order in ([self.OLD, self.NEW, self.NEWEST], [self.NEWEST, self.OLD, self.NEW]):
            found = select_price(order, at(moment))
            assert found is not None
            assert found.per_call_micros == expected

    def test_first_price_is_not_selected_before_its_time(self) -> None:
        assert select_price([self.NEW], at("2026-12-31T00:00:00Z")) is None
        assert select_price([], datetime.now(UTC)) is None

    @given(st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(0), timedelta(hours=1)))
    def test_moments_of_one_second_select_one_price(
        self, moment: datetime, later: timedelta
    ) -> None:
        # What takes effect within a second does so for calls of the next one: the moment that is
        # told has no fractions, and a task's creation time neither.
        shown = floor_moment(moment)
        assert shown <= moment
        assert moment - shown < timedelta(seconds=1)
        assert shown.microsecond == 0
        assert floor_moment(shown) == shown
        if later < timedelta(seconds=1) - (moment - shown):
            assert floor_moment(moment + later) == shown


@pytest.mark.parametrize("module", [money, pricing, pricechecks, schedules, ledger, usage])
def test_money_is_computed_without_floats(module: ModuleType) -> None:
    """No literal, call, annotation or true division makes one where amounts are worked out."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id == "float")
        assert not isinstance(node, ast.Div), ast.unparse(node)
