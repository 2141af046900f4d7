"""Micro-dollars inside, cents and decimals at the edge (§2.3, §2.4)."""

import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.api.money import MAX_MICROS, ceil_cents, floor_cents, to_decimal_text
from gateway_core.providers.catalog import MOST_CALL_MICROS

micros = st.integers(min_value=-MAX_MICROS, max_value=MAX_MICROS)


@given(micros)
def test_cents_enclose_the_amount(amount: int) -> None:
    assert floor_cents(amount) * 10_000 <= amount <= ceil_cents(amount) * 10_000
    assert ceil_cents(amount) - floor_cents(amount) == (amount % 10_000 != 0)


@given(micros)
def test_decimal_text_is_exact(amount: int) -> None:
    text = to_decimal_text(amount)
    assert Decimal(text) * 1_000_000 == amount
    assert re.fullmatch(r"-?\d+\.\d{2,6}", text)
    assert not re.search(r"\.\d{2}\d*0$", text), "no more zeros than two decimals need"


@given(st.integers(min_value=0, max_value=MOST_CALL_MICROS))
def test_cost_survives_conversion_to_a_binary_float(amount: int) -> None:
    """`usage.cost` is a JSON number, and most clients read those as doubles."""
    assert round(json.loads(to_decimal_text(amount)) * 1_000_000) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0.00"),
        (1, "0.000001"),
        (125, "0.000125"),
        (10_000, "0.01"),
        (500_000, "0.50"),
        (1_234_560, "1.23456"),
        (100_000_000, "100.00"),
        (-500_000, "-0.50"),
    ],
)
def test_decimal_text(amount: int, text: str) -> None:
    assert to_decimal_text(amount) == text


@pytest.mark.parametrize(
    ("amount", "floor", "ceiling"), [(9_999, 0, 1), (10_001, 1, 2), (-1, -1, 0), (0, 0, 0)]
)
def test_cents(amount: int, floor: int, ceiling: int) -> None:
    assert (floor_cents(amount), ceil_cents(amount)) == (floor, ceiling)
