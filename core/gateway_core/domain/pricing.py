"""What a call costs: the same function quotes, reserves and charges (contract §2.7).

Pure; amounts are integer micro-dollars.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from math import ceil
from typing import Any

from gateway_core.contract.model import Price, SecondPrice

ANY_RESOLUTION = "*"


def select_price(prices: Iterable[Price], at: datetime) -> Price | None:
    """The price in force at `at` (aware): the one that took effect last."""
    in_force = [price for price in prices if _effective(price) <= at]
    return max(in_force, key=_effective, default=None)


def quote(price: Price, values: Mapping[str, Any]) -> int:
    """Micro-dollars for a call with these values (defaults applied).

    Raises:
        LookupError: the price says nothing of the values' resolution.
    """
    return _cost(price, values, Fraction(values.get("duration_seconds", 0)))


def charge(
    price: Price | None, values: Mapping[str, Any], *, reserved: int, seconds: float | None
) -> int:
    """Micro-dollars for what was made: by the seconds the provider reports, never over the hold.

    A provider that reports none, or a model that is gone by then, means that the quote is due.
    """
    if price is None or seconds is None or not 0 <= seconds < 1e6:
        return reserved
    try:
        return min(reserved, _cost(price, values, Fraction(str(seconds))))
    except LookupError:
        return reserved


def missing_resolutions(prices: Iterable[Price], resolutions: Iterable[str]) -> list[str]:
    """Resolutions that some price with prices per second says nothing of."""
    wanted = list(resolutions)
    missing: dict[str, None] = {}
    for price in prices:
        if price.per_second and not _rate(price.per_second, ANY_RESOLUTION):
            named = {rate.resolution for rate in price.per_second}
            missing.update(dict.fromkeys(item for item in wanted if item not in named))
    return list(missing)


def _cost(price: Price, values: Mapping[str, Any], seconds: Fraction) -> int:
    total = Fraction(price.per_call_micros or 0)
    if price.per_second:
        resolution = str(values.get("output_resolution", ANY_RESOLUTION))
        rate = _rate(price.per_second, resolution) or _rate(price.per_second, ANY_RESOLUTION)
        if rate is None:
            raise LookupError(f"no price for {resolution}")
        total += rate.micros * seconds
    return ceil(total)


def _rate(rates: Iterable[SecondPrice], resolution: str) -> SecondPrice | None:
    return next((rate for rate in rates if rate.resolution == resolution), None)


def _effective(price: Price) -> datetime:
    if price.effective_time is None:
        return datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return datetime.fromisoformat(price.effective_time)
