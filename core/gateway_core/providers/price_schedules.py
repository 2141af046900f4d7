"""The price list as clients see it (contract §2.6): in micro-dollars, which is what is charged, and
in whole cents, rounded up. Pure.

A price below a cent has no cents: 1 for a hundredth of a cent would be read as a hundred times the
price.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway_core.api.model import Price
from gateway_core.api.money import MICROS_PER_CENT, ceil_cents
from gateway_core.billing.prices import Unit, find_cached_price
from gateway_core.providers.price_list import CatalogStatus, PricingStatus, Schedule, Strategy

Cents = Annotated[
    int | None, Field(description="Rounded up; null below one cent: the micros are exact.")
]


class SecondRate(BaseModel):
    """The price of a second at one resolution."""

    resolution: str
    micros: int


class BillingConfig(BaseModel):
    """The price in millionths of a dollar: what is charged by."""

    effective_time: str | None = Field(description="Since when; null for always.")
    per_call_micros: int | None
    per_second: list[SecondRate] | None
    per_image_micros: int | None
    input_per_1m_micros: int | None
    cache_read_per_1m_micros: int | None
    output_per_1m_micros: int | None


class PriceSchedule(BaseModel):
    """One model in the price list."""

    service: str
    action: str
    model: str | None
    pricing_status: PricingStatus
    catalog_status: CatalogStatus
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
    """The entry as the price list shows it."""
    config = None if entry.price is None else _render_config(entry, entry.price)
    input_, output, cached = None, None, None
    if config is not None:
        input_, output = config.input_per_1m_micros, config.output_per_1m_micros
        cached = config.cache_read_per_1m_micros
    prices = {
        "unit_price": entry.unit_micros,
        "input_price_per_1m": input_,
        "output_price_per_1m": output,
        "cache_read_price_per_1m": cached,
        # writes to a provider's cache are charged as other input
        "cache_write_price_per_1m": None,
        "cache_write_5m_price_per_1m": None,
        "cache_write_1h_price_per_1m": None,
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
    return BillingConfig(
        effective_time=price.effective_time,
        per_call_micros=price.per_call_micros,
        per_second=seconds or None,
        per_image_micros=price.per_image_micros,
        input_per_1m_micros=price.input_per_million_micros,
        cache_read_per_1m_micros=find_cached_price(price),
        output_per_1m_micros=price.output_per_million_micros,
    )


def _to_cents(micros: int | None) -> int | None:
    return None if micros is None or 0 < micros < MICROS_PER_CENT else ceil_cents(micros)
