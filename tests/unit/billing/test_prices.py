"""Prices: one calculation quotes, reserves and charges (§2.7)."""

import ast
import inspect
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api import money
from gateway_core.api.model import Price, SecondPrice
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
    input_per_million_micros=st.none() | rates,
    output_per_million_micros=st.none() | rates,
    cached_per_million_micros=st.none() | rates,
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
    input_tokens=counts,
    output_tokens=counts,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Usage, Usage]:
    """A bound, and a usage within it."""
    bound = draw(bounds)
    assert bound.seconds is not None
    within = {}
    for name in ("images", "input_tokens", "output_tokens"):
        within[name] = draw(st.integers(min_value=0, max_value=getattr(bound, name)))
    cached = draw(st.integers(min_value=0, max_value=within["input_tokens"]))
    part = draw(st.fractions(min_value=0, max_value=1, max_denominator=100))
    return bound, replace(bound, seconds=bound.seconds * part, cached_tokens=cached, **within)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def price(**fields: Any) -> Price:
    return Price.model_validate(fields)


def task(seconds: int = 5, resolution: str = "720p") -> Usage:
    return bound_task({"duration_seconds": seconds, "output_resolution": resolution})


def made(seconds: str) -> Usage:
    return Usage(seconds=Fraction(seconds))


class TestQuote:
    def test_seconds_at_the_price_of_the_resolution(self) -> None:
        asked = price(perSecond=[{"resolution": "720p", "micros": 60_000}, {"micros": 1}])
        assert quote(asked, task()) == 300_000

    def test_star_prices_other_resolutions(self) -> None:
        asked = price(perSecond=[{"resolution": "720p", "micros": 60_000}, {"micros": 100_000}])
        assert quote(asked, task(resolution="4k")) == 500_000

    def test_a_call_and_its_seconds_add_up(self) -> None:
        assert quote(price(perCallMicros=5, perSecond=[{"micros": 10}]), task(3)) == 35

    def test_a_call_alone(self) -> None:
        assert quote(price(perCallMicros=7), task(16)) == 7

    def test_free_is_nothing(self) -> None:
        assert quote(price(perCallMicros=0), bound_task({})) == 0

    def test_a_model_without_resolutions_has_the_star(self) -> None:
        asked = price(perSecond=[{"micros": 10}])
        assert quote(asked, bound_task({"duration_seconds": 3})) == 30

    def test_missing_price_of_a_resolution_is_named(self) -> None:
        asked = price(perSecond=[{"resolution": "720p", "micros": 1}])
        with pytest.raises(LookupError, match="4k"):
            quote(asked, task(resolution="4k"))

    def test_images(self) -> None:
        assert quote(price(perImageMicros=40_000), Usage(images=3)) == 120_000

    def test_tokens_are_rounded_up_once_for_the_call(self) -> None:
        asked = price(inputPerMillionMicros=150_000, outputPerMillionMicros=600_000)
        # 3 * 0.15 + 1 * 0.6 = 1.05 micro-dollars; each part by itself would make 2
        assert quote(asked, Usage(input_tokens=3, output_tokens=1)) == 2
        assert quote(asked, Usage(input_tokens=1, output_tokens=1)) == 1
        assert quote(asked, Usage(input_tokens=10**6, output_tokens=10**6)) == 750_000

    def test_cached_tokens_are_bounded_by_what_is_dearer(self) -> None:
        bound = Usage(input_tokens=10**6, output_tokens=0)
        cheaper = price(inputPerMillionMicros=100, cachedPerMillionMicros=10)
        assert quote(cheaper, bound) == 100
        dearer = price(inputPerMillionMicros=100, cachedPerMillionMicros=125)
        assert quote(dearer, bound) == 125

    @pytest.mark.parametrize(
        ("fields", "what"),
        [
            ({"perSecond": [{"micros": 1}]}, "seconds"),
            ({"perImageMicros": 1}, "images"),
            ({"inputPerMillionMicros": 1}, "input tokens"),
            ({"cachedPerMillionMicros": 1, "perCallMicros": 1}, "input tokens"),
            ({"outputPerMillionMicros": 1}, "output tokens"),
        ],
    )
    def test_unbounded_cost_has_no_quote(self, fields: dict[str, Any], what: str) -> None:
        with pytest.raises(LookupError, match=what):
            quote(price(**fields), Usage())


class TestCharge:
    @given(prices, inputs)
    def test_quoted_amount_is_charged(self, asked: Price, values: dict[str, Any]) -> None:
        bound = bound_task(values)
        reserved = quote(asked, bound)
        used = made(str(float(values["duration_seconds"])))
        assert charge(asked, bound, used, reserved=reserved) == reserved
        assert charge(asked, bound, Usage(), reserved=reserved) == reserved

    @given(prices, st.none() | all_prices, inputs, seconds)
    def test_a_price_that_is_edited_changes_nothing_for_what_is_made_in_full(
        self, asked: Price, edited: Price | None, values: dict[str, Any], more: Fraction
    ) -> None:
        bound = bound_task(values)
        reserved = quote(asked, bound)
        assert bound.seconds is not None
        used = Usage(seconds=bound.seconds + more)
        assert charge(edited, bound, used, reserved=reserved) == reserved

    @given(all_prices, calls())
    def test_never_more_than_was_quoted(self, asked: Price, call: tuple[Usage, Usage]) -> None:
        bound, used = call
        reserved = quote(asked, bound)
        charged = charge(asked, bound, used, reserved=reserved)
        assert 0 <= charged <= reserved
        assert type(charged) is type(reserved) is int

    @given(
        st.none() | all_prices,
        bounds,
        st.builds(
            Usage,
            seconds=st.none() | st.fractions(),
            images=st.none() | st.integers(),
            input_tokens=st.none() | st.integers(),
            cached_tokens=st.integers(),
            output_tokens=st.none() | st.integers(),
        ),
        st.integers(min_value=0, max_value=10**12),
    )
    def test_nonsense_is_never_over_the_hold_and_never_negative(
        self, asked: Price | None, bound: Usage, used: Usage, reserved: int
    ) -> None:
        assert 0 <= charge(asked, bound, used, reserved=reserved) <= reserved

    @given(all_prices, calls(), st.fractions(min_value=0, max_value=1, max_denominator=64))
    def test_less_made_never_costs_more(
        self, asked: Price, call: tuple[Usage, Usage], part: Fraction
    ) -> None:
        bound, used = call
        assert used.seconds is not None
        cached = used.cached_tokens
        less = replace(
            used,
            seconds=used.seconds * part,
            images=int((used.images or 0) * part),
            input_tokens=cached + int(((used.input_tokens or 0) - cached) * part),
            output_tokens=int((used.output_tokens or 0) * part),
        )
        reserved = quote(asked, bound)
        cheaper = charge(asked, bound, less, reserved=reserved)
        assert cheaper <= charge(asked, bound, used, reserved=reserved)

    @given(all_prices, bounds, bounds)
    def test_a_wider_bound_never_reserves_less(
        self, asked: Price, one: Usage, other: Usage
    ) -> None:
        assert one.seconds is not None
        assert other.seconds is not None
        wider = replace(
            one,
            seconds=one.seconds + other.seconds,
            images=(one.images or 0) + (other.images or 0),
            input_tokens=(one.input_tokens or 0) + (other.input_tokens or 0),
            output_tokens=(one.output_tokens or 0) + (other.output_tokens or 0),
        )
        assert quote(asked, one) <= quote(asked, wider)

    def test_less_made_is_less_charged(self) -> None:
        asked = price(perSecond=[{"micros": 100}])
        assert charge(asked, task(5), made("4.5"), reserved=500) == 450

    def test_a_fraction_is_rounded_up_exactly(self) -> None:
        # in binary 4.1 * 10 is a little over 41
        assert charge(price(perSecond=[{"micros": 1}]), task(5), made("4.1"), reserved=5) == 5
        assert charge(price(perSecond=[{"micros": 10}]), task(5), made("4.1"), reserved=50) == 41

    def test_cached_tokens_have_their_price(self) -> None:
        asked = price(
            inputPerMillionMicros=1_000_000,
            cachedPerMillionMicros=100_000,
            outputPerMillionMicros=2_000_000,
        )
        bound = Usage(input_tokens=100, output_tokens=50)
        used = Usage(input_tokens=100, cached_tokens=60, output_tokens=50)
        assert charge(asked, bound, used, reserved=200) == 40 + 6 + 100

    def test_cached_tokens_without_a_price_of_their_own_cost_what_others_do(self) -> None:
        asked = price(inputPerMillionMicros=1_000_000)
        bound = Usage(input_tokens=100)
        used = Usage(input_tokens=90, cached_tokens=60)
        assert charge(asked, bound, used, reserved=100) == 90

    def test_a_dear_cache_is_charged_only_where_it_was_used(self) -> None:
        asked = price(inputPerMillionMicros=1_000_000, cachedPerMillionMicros=1_250_000)
        bound = Usage(input_tokens=100)
        assert quote(asked, bound) == 125
        assert charge(asked, bound, Usage(input_tokens=100), reserved=125) == 100
        used = Usage(input_tokens=100, cached_tokens=40)
        assert charge(asked, bound, used, reserved=125) == 110

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
    def test_where_the_price_is_another_now_the_reservation_is_due_in_part(
        self, now: Price | None, done: str, due: int
    ) -> None:
        assert charge(now, task(10), made(done), reserved=1_000_000) == due

    def test_a_part_of_the_reservation_is_rounded_up(self) -> None:
        assert charge(None, task(3), made("1"), reserved=100) == 34

    def test_largest_of_several_amounts_is_charged(self) -> None:
        bound = Usage(images=4, input_tokens=100, output_tokens=1000)
        assert charge(None, Usage(images=1), replace(bound), reserved=80) == 80
        used = Usage(images=1, input_tokens=50, output_tokens=100)
        assert charge(None, bound, used, reserved=80) == 40
        assert charge(None, Usage(images=4), Usage(images=1), reserved=80) == 20

    def test_unreported_usage_of_a_removed_model_is_charged_whole(self) -> None:
        assert charge(None, task(5), Usage(), reserved=77) == 77
        assert charge(None, bound_task({}), made("1"), reserved=77) == 77


class TestUnits:
    @pytest.mark.parametrize(
        ("fields", "units"),
        [
            ({"perCallMicros": 0}, (Unit.CALL,)),
            ({"perSecond": [{"micros": 0}]}, (Unit.SECOND,)),
            ({"perImageMicros": 0}, (Unit.IMAGE,)),
            ({"inputPerMillionMicros": 0}, (Unit.TOKEN,)),
            ({"outputPerMillionMicros": 0, "cachedPerMillionMicros": 0}, (Unit.TOKEN,)),
            ({"outputPerMillionMicros": 1, "perCallMicros": 1}, (Unit.CALL, Unit.TOKEN)),
        ],
    )
    def test_what_is_given(self, fields: dict[str, Any], units: tuple[Unit, ...]) -> None:
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
    def test_the_price_that_took_effect_last(self, moment: str, expected: int) -> None:
        for order in ([self.OLD, self.NEW, self.NEWEST], [self.NEWEST, self.OLD, self.NEW]):
            found = select_price(order, at(moment))
            assert found is not None
            assert found.per_call_micros == expected

    def test_none_before_the_first(self) -> None:
        assert select_price([self.NEW], at("2026-12-31T00:00:00Z")) is None
        assert select_price([], datetime.now(UTC)) is None

    @given(st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(0), timedelta(hours=1)))
    def test_two_looks_in_one_second_find_one_price(
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
def test_no_number_of_money_is_a_float(module: ModuleType) -> None:
    """No literal, call, annotation or true division makes one where amounts are worked out."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id == "float")
        assert not isinstance(node, ast.Div), ast.unparse(node)
