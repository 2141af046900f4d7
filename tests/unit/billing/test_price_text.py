"""Prices as texts for people."""

from typing import Any

import pytest

from gateway_core.api.price import Price
from gateway_core.billing.price_text import describe_price


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {
                "perSecond": [
                    {"resolution": "720p", "micros": 60_000},
                    {"resolution": "*", "micros": 125},
                ],
                "perCallMicros": 0,
            },
            "0.06 a second of 720p, 0.000125 a second, 0.00 a call",
        ),
        (
            {
                "inputPerMillionMicros": 3_000_000,
                "cacheWritePerMillionMicros": 3_750_000,
                "tiers": [
                    {"abovePromptTokens": 400_000, "inputPerMillionMicros": 9_000_000},
                    {"abovePromptTokens": 200_000, "inputPerMillionMicros": 6_000_000},
                ],
            },
            "3.00 a million input tokens, 3.75 a million cache-write tokens;"
            " above 200,000 prompt tokens: 6.00 a million input tokens;"
            " above 400,000 prompt tokens: 9.00 a million input tokens",
        ),
    ],
)
def test_price_is_shown_by_unit_and_tier(fields: dict[str, Any], text: str) -> None:
    assert describe_price(Price.model_validate(fields)) == text
