"""Prices as texts for people. Pure."""

from gateway_core.api.money import to_decimal_text
from gateway_core.api.price import Price, TokenRates
from gateway_core.billing.prices import ANY_RESOLUTION

_TOKENS = {
    "input_per_million_micros": "input",
    "cached_per_million_micros": "cached",
    "cached_audio_per_million_micros": "cached sound",
    "cache_write_per_million_micros": "cache-write",
    "cache_write_hour_per_million_micros": "one-hour cache-write",
    "audio_input_per_million_micros": "sound input",
    "image_input_per_million_micros": "image input",
    "output_per_million_micros": "output",
    "audio_output_per_million_micros": "sound output",
    "image_output_per_million_micros": "image output",
}


def describe_price(price: Price) -> str:
    """Return a price in dollars, e.g. `0.06 a second of 720p, 0.50 a million input tokens`."""
    parts = [
        f"{to_decimal_text(each.micros)} a second"
        + ("" if each.resolution == ANY_RESOLUTION else f" of {each.resolution}")
        for each in price.per_second or ()
    ]
    if price.per_call_micros is not None:
        parts.append(f"{to_decimal_text(price.per_call_micros)} a call")
    if price.per_image_micros is not None:
        parts.append(f"{to_decimal_text(price.per_image_micros)} an image")
    texts = [", ".join(parts + _list_rates(price))]
    for tier in sorted(price.tiers or (), key=lambda each: each.above_prompt_tokens):
        rates = ", ".join(_list_rates(tier))
        texts.append(f"above {tier.above_prompt_tokens:,} prompt tokens: {rates}")
    return "; ".join(texts)


def _list_rates(rates: TokenRates) -> list[str]:
    return [
        f"{to_decimal_text(micros)} a million {kind} tokens"
        for name, kind in _TOKENS.items()
        if (micros := getattr(rates, name)) is not None
    ]
