"""Prices: one function quotes, reserves and charges (§2.7)."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.contract.model import Price, SecondPrice
from gateway_core.domain.pricing import charge, missing_resolutions, quote, select_price

RESOLUTIONS = ("540p", "720p", "1080p", "2k", "4k")

rates = st.integers(min_value=0, max_value=10**9)
second_prices = st.lists(
    st.builds(SecondPrice, resolution=st.sampled_from([*RESOLUTIONS, "*"]), micros=rates),
    unique_by=lambda rate: rate.resolution,
    max_size=6,
).map(lambda made: [*(r for r in made if r.resolution != "*"), SecondPrice(micros=7)])
prices = st.builds(Price, per_call_micros=st.none() | rates, per_second=st.none() | second_prices)
inputs = st.fixed_dictionaries(
    {
        "duration_seconds": st.integers(min_value=3, max_value=16),
        "output_resolution": st.sampled_from(RESOLUTIONS),
    }
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def price(**fields: Any) -> Price:
    return Price.model_validate(fields)


class TestQuote:
    def test_seconds_at_the_price_of_the_resolution(self) -> None:
        made = price(perSecond=[{"resolution": "720p", "micros": 60_000}, {"micros": 1}])
        values = {"duration_seconds": 5, "output_resolution": "720p"}
        assert quote(made, values) == 300_000

    def test_every_other_resolution_has_the_star(self) -> None:
        made = price(perSecond=[{"resolution": "720p", "micros": 60_000}, {"micros": 100_000}])
        assert quote(made, {"duration_seconds": 5, "output_resolution": "4k"}) == 500_000

    def test_a_call_and_its_seconds_add_up(self) -> None:
        made = price(perCallMicros=5, perSecond=[{"micros": 10}])
        assert quote(made, {"duration_seconds": 3, "output_resolution": "4k"}) == 35

    def test_a_call_alone(self) -> None:
        assert quote(price(perCallMicros=7), {"duration_seconds": 16}) == 7

    def test_free_is_nothing(self) -> None:
        assert quote(price(perCallMicros=0), {}) == 0

    def test_a_model_without_resolutions_has_the_star(self) -> None:
        assert quote(price(perSecond=[{"micros": 10}]), {"duration_seconds": 3}) == 30

    def test_no_price_for_a_resolution_is_told(self) -> None:
        made = price(perSecond=[{"resolution": "720p", "micros": 1}])
        with pytest.raises(LookupError, match="4k"):
            quote(made, {"duration_seconds": 3, "output_resolution": "4k"})


class TestCharge:
    @given(prices, inputs)
    def test_what_was_quoted_is_charged(self, made: Price, values: dict[str, Any]) -> None:
        reserved = quote(made, values)
        seconds = float(values["duration_seconds"])
        assert charge(made, values, reserved=reserved, seconds=seconds) == reserved
        assert charge(made, values, reserved=reserved, seconds=None) == reserved

    @given(
        prices,
        inputs,
        st.floats(allow_nan=True, allow_infinity=True),
        st.integers(min_value=0, max_value=10**9),
    )
    def test_never_over_the_hold_and_never_negative(
        self, made: Price, values: dict[str, Any], seconds: float, reserved: int
    ) -> None:
        assert 0 <= charge(made, values, reserved=reserved, seconds=seconds) <= reserved

    @given(prices, inputs, st.floats(min_value=0, max_value=16))
    def test_fewer_seconds_never_cost_more(
        self, made: Price, values: dict[str, Any], seconds: float
    ) -> None:
        reserved = quote(made, {**values, "duration_seconds": 16})
        less = charge(made, values, reserved=reserved, seconds=seconds / 2)
        assert less <= charge(made, values, reserved=reserved, seconds=seconds)

    def test_less_made_is_less_charged(self) -> None:
        made = price(perSecond=[{"micros": 100}])
        values = {"duration_seconds": 5, "output_resolution": "720p"}
        assert charge(made, values, reserved=500, seconds=4.5) == 450

    def test_a_fraction_is_rounded_up_exactly(self) -> None:
        made = price(perSecond=[{"micros": 1}])
        assert charge(made, {"output_resolution": "4k"}, reserved=50, seconds=4.1) == 5
        made = price(perSecond=[{"micros": 10}])
        assert charge(made, {"output_resolution": "4k"}, reserved=50, seconds=4.1) == 41

    def test_a_model_that_is_gone_costs_what_was_held(self) -> None:
        assert charge(None, {}, reserved=77, seconds=1.0) == 77

    def test_a_price_that_is_gone_costs_what_was_held(self) -> None:
        made = price(perSecond=[{"resolution": "720p", "micros": 1}])
        assert charge(made, {"output_resolution": "4k"}, reserved=77, seconds=1.0) == 77


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


class TestMissingResolutions:
    def test_all_named(self) -> None:
        made = price(perSecond=[{"resolution": name, "micros": 1} for name in RESOLUTIONS])
        assert missing_resolutions([made], RESOLUTIONS) == []

    def test_some_not_named(self) -> None:
        made = price(perSecond=[{"resolution": "720p", "micros": 1}])
        assert missing_resolutions([made], RESOLUTIONS) == ["540p", "1080p", "2k", "4k"]

    def test_the_star_is_all(self) -> None:
        assert missing_resolutions([price(perSecond=[{"micros": 1}])], RESOLUTIONS) == []

    def test_a_price_for_the_call_alone_needs_none(self) -> None:
        assert missing_resolutions([price(perCallMicros=1)], RESOLUTIONS) == []

    def test_each_price_counts(self) -> None:
        good = price(perSecond=[{"micros": 1}])
        later = price(
            perSecond=[{"resolution": "720p", "micros": 1}], effectiveTime="2030-01-01T00:00:00Z"
        )
        assert missing_resolutions([good, later], ("720p", "4k")) == ["4k"]
