"""The price list as clients see it (contract §2.6): in micro-dollars, which is what is charged, and
in whole cents, rounded up. Pure.

A price below a cent has no cents: 1 for a hundredth of a cent would be read as a hundred times the
price.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway_core.api.money import MICROS_PER_CENT, ceil_cents
from gateway_core.api.price import Price
from gateway_core.billing.prices import Unit
from gateway_core.billing.token_prices import Rates, has_token_rates, list_tiers
from gateway_core.providers.price_list import CatalogStatus, PricingStatus, Schedule, Strategy

Cents = Annotated[
    int | None, Field(description="Rounded up; null below one cent: the micros are exact.")
]


class SecondRate(BaseModel):
    """The price of a second at one resolution."""

    resolution: str
    micros: int


class TokenPrices(BaseModel):
    """Prices of a million tokens in millionths of a dollar; null where tokens have no price.

    A kind of token without a price of its own has that of other input or output.
    """

    input_per_1m_micros: int | None
    cache_read_per_1m_micros: int | None
    cache_read_audio_per_1m_micros: int | None
    cache_write_per_1m_micros: int | None
    cache_write_1h_per_1m_micros: int | None
    audio_input_per_1m_micros: int | None
    image_input_per_1m_micros: int | None
    output_per_1m_micros: int | None
    audio_output_per_1m_micros: int | None
    image_output_per_1m_micros: int | None


class PriceTier(TokenPrices):
    """Prices of all tokens of a call whose prompt is longer than others."""

    above_prompt_tokens: int = Field(
        description="The tier applies to prompts with more tokens than this; of several the highest"
        " one."
    )


class BillingConfig(TokenPrices):
    """The price in millionths of a dollar: what is charged by."""

    effective_time: str | None = Field(description="Since when; null for always.")
    per_call_micros: int | None
    per_second: list[SecondRate] | None
    per_image_micros: int | None
    tiers: list[PriceTier] | None = Field(
        description="Prices for long prompts; null where the length does not matter."
    )


class PriceSchedule(BaseModel):
    """One model in the price list."""

    service: str
    action: str
    model: str | None
    pricing_status: PricingStatus
    catalog_status: CatalogStatus = Field(
        description="`unavailable`: withdrawn, or none of its providers is ready."
    )
    currency: Literal["USD"]
    billing_unit: Unit | None = Field(description="Null if there are several, or no price.")
    billing_strategy: Strategy | None
    unit_price_cents: Cents
    unit_price_micros: int | None = Field(description="Of one unit, in millionths of a dollar.")
    input_price_per_1m_cents: Cents
    input_price_per_1m_micros: int | None
    output_price_per_1m_cents: Cents
    output_price_per_1m_micros: int | None
    cache_read_price_per_1m_cents: Cents
    cache_read_price_per_1m_micros: int | None
    cache_write_price_per_1m_cents: Cents
    cache_write_price_per_1m_micros: int | None
    cache_write_5m_price_per_1m_cents: Cents
    cache_write_5m_price_per_1m_micros: int | None
    cache_write_1h_price_per_1m_cents: Cents
    cache_write_1h_price_per_1m_micros: int | None
    billing_config: BillingConfig | None


def render_schedule(entry: Schedule) -> PriceSchedule:
    """Return the entry as the price list shows it."""
    config = None if entry.price is None else _render_config(entry, entry.price)
    tokens = _name_rates(None) if config is None else config.model_dump()
    prices = {
        "unit_price": entry.unit_micros,
        "input_price_per_1m": tokens["input_per_1m_micros"],
        "output_price_per_1m": tokens["output_per_1m_micros"],
        "cache_read_price_per_1m": tokens["cache_read_per_1m_micros"],
        "cache_write_price_per_1m": tokens["cache_write_per_1m_micros"],
        "cache_write_5m_price_per_1m": tokens["cache_write_per_1m_micros"],
        "cache_write_1h_price_per_1m": tokens["cache_write_1h_per_1m_micros"],
    }
    return PriceSchedule(
        service=entry.service,
        action=entry.action,
        model=entry.model_id,
        pricing_status=entry.pricing_status,
        catalog_status=entry.catalog_status,
        currency="USD",
        billing_unit=entry.unit,
        billing_strategy=entry.strategy,
        billing_config=config,
        **{f"{name}_cents": _to_cents(micros) for name, micros in prices.items()},
        **{f"{name}_micros": micros for name, micros in prices.items()},
    )


def _render_config(entry: Schedule, price: Price) -> BillingConfig:
    seconds = [SecondRate(resolution=name, micros=micros) for name, micros in entry.seconds]
    first, *others = list_tiers(price)
    return BillingConfig(
        effective_time=price.effective_time,
        per_call_micros=price.per_call_micros,
        per_second=seconds or None,
        per_image_micros=price.per_image_micros,
        **_name_rates(first[1] if has_token_rates(price) else None),
        tiers=[
            PriceTier(above_prompt_tokens=threshold, **_name_rates(rates))
            for threshold, rates in others
        ]
        or None,
    )


def _name_rates(rates: Rates | None) -> dict[str, int | None]:
    if rates is None:
        return dict.fromkeys(TokenPrices.model_fields)
    # `Rates` has them in the same order
    return dict(zip(TokenPrices.model_fields, rates, strict=True))


def read_rates(config: Mapping[str, Any], prompt: int) -> Rates:
    """Return the rates of a call with so long a prompt by the `billing_config` of a price list."""
    tiers = [tier for tier in config["tiers"] or () if tier["above_prompt_tokens"] < prompt]
    tokens = max(tiers, key=itemgetter("above_prompt_tokens"), default=config)
    return Rates(*(tokens[name] or 0 for name in TokenPrices.model_fields))


def _to_cents(micros: int | None) -> int | None:
    return None if micros is None or 0 < micros < MICROS_PER_CENT else ceil_cents(micros)
