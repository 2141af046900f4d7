"""Prices of tokens: kinds, tiers by prompt length, reservations (§2.7)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_core.api.price import Price, PromptTier, TokenRates
from gateway_core.billing.token_prices import (
    TokenCounts,
    charge_tokens,
    find_rates,
    list_tiers,
    quote_tokens,
)

rates = st.none() | st.integers(min_value=0, max_value=10**9)
token_rates = dict.fromkeys(TokenRates.model_fields, rates)
tiers = st.lists(
    st.builds(
        PromptTier, above_prompt_tokens=st.integers(min_value=1, max_value=2000), **token_rates
    ),
    unique_by=lambda tier: tier.above_prompt_tokens,
    min_size=1,
    max_size=3,
)
prices = st.builds(Price, per_call_micros=rates, tiers=st.none() | tiers, **token_rates)
counts = st.integers(min_value=0, max_value=2500)


@st.composite
def calls(draw: st.DrawFn) -> TokenCounts:
    used = TokenCounts(draw(counts), draw(counts))
    left = used.input
    for name in ("cached", "written", "audio", "image"):
        setattr(used, name, draw(st.integers(min_value=0, max_value=left)))
        left -= getattr(used, name)
    used.cached_audio = draw(st.integers(min_value=0, max_value=used.cached))
    used.written_hour = draw(st.integers(min_value=0, max_value=used.written))
    used.output_audio = draw(st.integers(min_value=0, max_value=used.output))
    used.output_image = draw(st.integers(0, used.output - used.output_audio))
    return used


def price(**fields: Any) -> Price:
    return Price.model_validate(fields)


FLAT = {"inputPerMillionMicros": 2_000_000, "outputPerMillionMicros": 10_000_000}
KINDS = {
    **FLAT,
    "cachedPerMillionMicros": 1_000_000,
    "cachedAudioPerMillionMicros": 3_000_000,
    "cacheWritePerMillionMicros": 4_000_000,
    "cacheWriteHourPerMillionMicros": 5_000_000,
    "audioInputPerMillionMicros": 6_000_000,
    "imageInputPerMillionMicros": 7_000_000,
    "audioOutputPerMillionMicros": 20_000_000,
    "imageOutputPerMillionMicros": 30_000_000,
}
LONG = {
    "abovePromptTokens": 200_000,
    "inputPerMillionMicros": 4_000_000,
    "outputPerMillionMicros": 15_000_000,
}
TIERED = {**FLAT, "tiers": [LONG]}
MOST = 10**12


@pytest.mark.parametrize(
    ("fields", "used", "micros"),
    [
        # 3 * 0.15 + 1 * 0.6 = 1.05 micro-dollars; each part by itself would make 2
        (
            {"inputPerMillionMicros": 150_000, "outputPerMillionMicros": 600_000},
            TokenCounts(3, 1),
            2,
        ),
        ({"perCallMicros": 7, **FLAT}, TokenCounts(1, 1), 19),
        (FLAT, TokenCounts(100, 10, cached=60, audio=20, image=5, output_image=5), 300),
        (KINDS, TokenCounts(100, 10, cached=60), 80 + 60 + 100),
        (KINDS, TokenCounts(100, 0, cached=60, cached_audio=50), 80 + 10 + 150),
        (KINDS, TokenCounts(1000, 0, written=400), 1200 + 1600),
        (KINDS, TokenCounts(1000, 0, written=400, written_hour=100), 1200 + 1200 + 500),
        (KINDS, TokenCounts(1010, 0, audio=1000), 20 + 6000),
        (KINDS, TokenCounts(310, 0, image=300), 20 + 2100),
        (KINDS, TokenCounts(0, 100, output_audio=60, output_image=30), 100 + 1200 + 900),
        # the whole prompt decides, and all tokens have the tier's rates
        (TIERED, TokenCounts(200_000, 10), 400_100),
        (TIERED, TokenCounts(200_001, 10), 800_154),
        (TIERED, TokenCounts(200_001, 10, cached=200_001), 800_154),
        (
            {**TIERED, "cachedPerMillionMicros": 1_000_000},
            TokenCounts(200_001, 0, cached=200_000),
            200_004,
        ),
    ],
)
def test_charge_is_the_price_of_each_kind(
    fields: dict[str, Any], used: TokenCounts, micros: int
) -> None:
    assert charge_tokens(price(**fields), used, reserved=MOST) == micros
    assert charge_tokens(price(**fields), used, reserved=1) == 1


@pytest.mark.parametrize(
    ("fields", "rates"),
    [
        ({"inputPerMillionMicros": 2}, {"input": 2, "cached": 2, "written_hour": 2, "audio": 2}),
        ({"outputPerMillionMicros": 3}, {"input": 0, "output_audio": 3, "output_image": 3}),
        ({"cachedPerMillionMicros": 1, "audioInputPerMillionMicros": 9}, {"cached_audio": 1}),
        ({"audioInputPerMillionMicros": 9}, {"cached_audio": 9, "cached": 0}),
        ({"cacheWritePerMillionMicros": 4}, {"written": 4, "written_hour": 4}),
    ],
)
def test_kind_without_a_rate_has_that_of_what_it_is_part_of(
    fields: dict[str, Any], rates: dict[str, int]
) -> None:
    found = find_rates(price(perCallMicros=0, **fields))
    assert {name: getattr(found, name) for name in rates} == rates


def test_highest_tier_below_the_prompt_applies_in_any_order() -> None:
    steps = [{"abovePromptTokens": n, "inputPerMillionMicros": n} for n in (300, 100, 200)]
    tiered = price(inputPerMillionMicros=1, outputPerMillionMicros=5, tiers=steps)
    found = [find_rates(tiered, prompt).input for prompt in (0, 100, 101, 200, 201, 300, 301)]
    assert found == [1, 1, 100, 100, 200, 200, 300]
    assert find_rates(tiered, 301).output == 5
    assert [threshold for threshold, _ in list_tiers(tiered)] == [0, 100, 200, 300]


@pytest.mark.parametrize(
    ("fields", "most_input", "has_media", "micros"),
    [
        (FLAT, 100, True, 300),
        # how much of the input is cached or written is unknown before the call
        (KINDS, 100, False, 100 * 5 + 10 * 30),
        (KINDS, 100, True, 100 * 7 + 10 * 30),
        (TIERED, 200_000, False, 400_100),
        (TIERED, 200_001, False, 800_154),
        # a cheaper tier for long prompts may leave a shorter prompt the dearest
        (
            {
                "inputPerMillionMicros": 2_000_000,
                "tiers": [{"abovePromptTokens": 100, "inputPerMillionMicros": 1_000_000}],
            },
            120,
            False,
            200,
        ),
    ],
)
def test_reservation_is_at_the_dearest_reachable_rate(
    fields: dict[str, Any], most_input: int, has_media: bool, micros: int
) -> None:
    assert quote_tokens(price(**fields), most_input, 10, has_media=has_media) == micros


@settings(max_examples=200)
@given(prices, calls())
def test_charge_within_the_bound_is_at_most_the_reservation(
    asked: Price, used: TokenCounts
) -> None:
    reserved = quote_tokens(asked, used.input, used.output, has_media=True)
    assert 0 <= charge_tokens(asked, used, reserved=MOST * 10**6) <= reserved


@settings(max_examples=100)
@given(prices, counts, counts, counts, st.booleans())
def test_wider_bound_reserves_no_less(
    asked: Price, most_input: int, more: int, output: int, has_media: bool
) -> None:
    narrow = quote_tokens(asked, most_input, output, has_media=has_media)
    assert narrow <= quote_tokens(asked, most_input + more, output, has_media=has_media)
    assert narrow <= quote_tokens(asked, most_input, output + more, has_media=True)
