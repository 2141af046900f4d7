"""Price of a call: one calculation quotes, reserves and charges (contract §2.7)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from gateway_core.api.model import Price

T = TypeVar("T")

ANY_RESOLUTION = "*"
_MILLION = 1_000_000


class Unit(StrEnum):
    """What a price can be of."""

    CALL = "call"
    SECOND = "second"
    IMAGE = "image"
    TOKEN = "token"  # noqa: S105 - a unit, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a call has made, or in a bound what it may make at most; None where nobody says.

    `cached_tokens` are those of `input_tokens` that were read from the provider's cache.
    """

    resolution: str = ANY_RESOLUTION
    seconds: Fraction | None = None
    images: int | None = None
    input_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None


def bound_task(values: Mapping[str, Any]) -> Usage:
    """The most that a task with these values (defaults applied) makes."""
    seconds = values.get("duration_seconds")
    return Usage(
        resolution=str(values.get("output_resolution", ANY_RESOLUTION)),
        seconds=None if seconds is None else Fraction(seconds),
    )


def floor_moment(now: datetime) -> datetime:
    """The whole second that a call's price is looked up by, which is also what clients are told."""
    return now.astimezone(UTC).replace(microsecond=0)


def select_price(prices: Iterable[Price], at: datetime) -> Price | None:
    """The price in force at `at` (aware): the one that took effect last."""
    in_force = [price for price in prices if effective_time(price) <= at]
    return max(in_force, key=effective_time, default=None)


def effective_time(price: Price) -> datetime:
    """When a price takes effect; the epoch for one that has always been in force."""
    if price.effective_time is None:
        return datetime.fromtimestamp(0, UTC)
    return datetime.fromisoformat(price.effective_time)


def list_units(price: Price) -> tuple[Unit, ...]:
    """What a price is of, in the order of `Unit`."""
    tokens = (
        price.input_per_million_micros,
        price.output_per_million_micros,
        price.cached_per_million_micros,
    )
    given = {
        Unit.CALL: price.per_call_micros is not None,
        Unit.SECOND: bool(price.per_second),
        Unit.IMAGE: price.per_image_micros is not None,
        Unit.TOKEN: any(micros is not None for micros in tokens),
    }
    return tuple(unit for unit, is_given in given.items() if is_given)


def find_second_price(price: Price, resolution: str) -> int | None:
    """Micro-dollars a second at a resolution; None where the price says nothing of it."""
    rates = {rate.resolution: rate.micros for rate in price.per_second or ()}
    return rates.get(resolution, rates.get(ANY_RESOLUTION))


def find_cached_price(price: Price) -> int | None:
    """Micro-dollars for a million input tokens read from the provider's cache."""
    if price.cached_per_million_micros is not None:
        return price.cached_per_million_micros
    return price.input_per_million_micros


def quote(price: Price, bound: Usage) -> int:
    """Micro-dollars that a call within `bound` cannot exceed: what is quoted and reserved.

    Raises:
        LookupError: the price is of something that the bound says nothing of, or has no rate for
            the bound's resolution.
    """
    # nobody knows yet how much of the input comes from a cache: whatever is dearer is assumed
    dearer = (find_cached_price(price) or 0) > (price.input_per_million_micros or 0)
    cached = (bound.input_tokens or 0) if dearer else 0
    return _sum_up(price, replace(bound, cached_tokens=cached))


def charge(price: Price | None, bound: Usage, used: Usage, *, reserved: int) -> int:
    """Micro-dollars for what was made: `reserved` for all of `bound`, less for less, never more.

    `price` is the one of the time of the call, `bound` what it was reserved by. What `used` does
    not tell, or cannot be, counts as the bound. Where the price is not the one it was reserved at
    (it was edited, the model is gone), the reservation is due in the proportion of what was made.
    """
    made = _complete(used, bound)
    if _is_whole(made, bound):
        # a price that has been edited since changes nothing for a call that made all it promised
        return reserved
    try:
        if price is not None and quote(price, bound) == reserved:
            return min(reserved, _sum_up(price, made))
    except LookupError:
        pass
    return ceil(reserved * _find_share(made, bound))


def _find_share(made: Usage, bound: Usage) -> Fraction:
    """How much of `bound` was made, 0 to 1: the largest share of any of its amounts.

    How the reservation was divided among them nobody knows any more; no division makes it more.
    """
    amounts = (
        (made.seconds, bound.seconds),
        (made.images, bound.images),
        (made.input_tokens, bound.input_tokens),
        (made.output_tokens, bound.output_tokens),
    )
    shares = [min(Fraction(1), Fraction(some, most)) for some, most in amounts if some and most]
    return max(shares, default=Fraction(0))


def _sum_up(price: Price, usage: Usage) -> int:
    """The whole of a call, rounded up."""
    total = Fraction(price.per_call_micros or 0)
    if price.per_second:
        rate = find_second_price(price, usage.resolution)
        if rate is None:
            raise LookupError(f"no price for {usage.resolution}")
        total += rate * _need(usage.seconds, "seconds")
    if price.per_image_micros is not None:
        total += price.per_image_micros * _need(usage.images, "images")
    cached_rate = find_cached_price(price)
    if cached_rate is not None:
        tokens = _need(usage.input_tokens, "input tokens")
        cached = min(usage.cached_tokens, tokens)
        fresh_rate = price.input_per_million_micros or 0
        total += Fraction(cached * cached_rate + (tokens - cached) * fresh_rate, _MILLION)
    if price.output_per_million_micros is not None:
        tokens = _need(usage.output_tokens, "output tokens")
        total += Fraction(tokens * price.output_per_million_micros, _MILLION)
    return ceil(total)


def _need(amount: T | None, what: str) -> T:
    if amount is None:
        raise LookupError(f"no bound of its {what}")
    return amount


def _complete(used: Usage, bound: Usage) -> Usage:
    """`used`, with what it does not tell from `bound`. It was made at the resolution asked for."""
    told = {}
    for name in ("seconds", "images", "input_tokens", "output_tokens"):
        amount = getattr(used, name)
        told[name] = getattr(bound, name) if amount is None or amount < 0 else amount
    return replace(bound, **told, cached_tokens=max(0, used.cached_tokens))


def _is_whole(made: Usage, bound: Usage) -> bool:
    """Whether there is nothing to charge less for. Of tokens nobody knows before: they are bounds.

    Seconds and images are exact: a call is asked for so many.
    """
    if bound.input_tokens is not None or bound.output_tokens is not None:
        return False
    amounts = (made.seconds, bound.seconds), (made.images, bound.images)
    return all(most is None or (some is not None and some >= most) for some, most in amounts)
