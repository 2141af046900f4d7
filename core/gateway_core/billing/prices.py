"""Price of a call: one calculation quotes, reserves and charges (contract §2.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from gateway_core.api.model import Price

T = TypeVar("T")
A = TypeVar("A", int, Fraction)

ANY_RESOLUTION = "*"
_MILLION = 1_000_000
_EPOCH = datetime.fromtimestamp(0, UTC)


class Unit(StrEnum):
    """Units that a price can be for."""

    CALL = "call"
    SECOND = "second"
    IMAGE = "image"
    TOKEN = "token"  # noqa: S105 - a unit, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Amounts that a call has used, or may use at most (a bound); None where unknown.

    `cached_tokens` are the part of `input_tokens` read from the provider's cache.
    """

    resolution: str = ANY_RESOLUTION
    seconds: Fraction | None = None
    images: int | None = None
    input_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None


def bound_task(values: Mapping[str, Any]) -> Usage:
    """The bound of a task with these values (defaults applied)."""
    seconds = values.get("duration_seconds")
    return Usage(
        resolution=str(values.get("output_resolution", ANY_RESOLUTION)),
        seconds=None if seconds is None else Fraction(seconds),
    )


def floor_moment(now: datetime) -> datetime:
    """The whole second at which a call's price is looked up, which clients also see."""
    return (now if now.tzinfo is UTC else now.astimezone(UTC)).replace(microsecond=0)


def select_price(prices: Sequence[Price], at: datetime) -> Price | None:
    """The price in force at `at` (aware): the latest that has taken effect."""
    if len(prices) == 1 and prices[0].effective_time is None:
        return prices[0]
    in_force = [price for price in prices if effective_time(price) <= at]
    return max(in_force, key=effective_time, default=None)


def effective_time(price: Price) -> datetime:
    """When a price takes effect; the epoch for one without a time."""
    if price.effective_time is None:
        return _EPOCH
    return datetime.fromisoformat(price.effective_time)


def list_units(price: Price) -> tuple[Unit, ...]:
    """Units of a price, in the order of `Unit`."""
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
    """Micro-dollars a second at a resolution; None where the price has none."""
    rates = {rate.resolution: rate.micros for rate in price.per_second or ()}
    return rates.get(resolution, rates.get(ANY_RESOLUTION))


def find_cached_price(price: Price) -> int | None:
    """Micro-dollars for a million input tokens read from the provider's cache."""
    if price.cached_per_million_micros is not None:
        return price.cached_per_million_micros
    return price.input_per_million_micros


def quote(price: Price, bound: Usage) -> int:
    """The most micro-dollars of a call within `bound`: the amount quoted and reserved.

    LookupError where the price has a unit that the bound lacks, or no rate for its resolution.
    """
    # how much of the input comes from a cache is unknown before the call: assume the dearer case
    dearer = (find_cached_price(price) or 0) > (price.input_per_million_micros or 0)
    return _sum_up(price, bound, (bound.input_tokens or 0) if dearer else 0)


def charge(price: Price | None, bound: Usage, used: Usage, *, reserved: int) -> int:
    """Micro-dollars for `used`: `reserved` for all of `bound`, less for less, never more.

    `price` is that of the call's time, `bound` the one that `reserved` was quoted for. Unknown or
    impossible amounts of `used` count as the bound's. Where the price has changed since (it was
    edited, the model is gone), the reservation is charged in proportion to the use.
    """
    made = _complete(used, bound)
    if _is_whole(made, bound):
        # a call that used its whole bound costs its reservation, whatever the price is by now
        return reserved
    try:
        if price is not None and quote(price, bound) == reserved:
            return min(reserved, _sum_up(price, made, made.cached_tokens))
    except LookupError:
        pass
    return ceil(reserved * _find_share(made, bound))


def quote_tokens(price: Price, given: int, made: int) -> int:
    """As `quote`, for a call of at most `given` input and `made` output tokens."""
    dearer = (price.cached_per_million_micros or 0) > (price.input_per_million_micros or 0)
    return _round_up(_sum_tokens(price, given, given if dearer else 0, made))


def charge_tokens(price: Price, given: int, cached: int, made: int, *, reserved: int) -> int:
    """As `charge`, for tokens that are all known, by the price that `reserved` was quoted by.

    `given` are the input tokens, `cached` among them, and `made` those of the output.
    """
    return min(reserved, _round_up(_sum_tokens(price, given, cached, made)))


def _find_share(made: Usage, bound: Usage) -> Fraction:
    """The used part of `bound`, 0 to 1: the largest of its amounts' parts.

    How the reservation was divided among the amounts is unknown, and no division gives more.
    """
    amounts = (
        (made.seconds, bound.seconds),
        (made.images, bound.images),
        (made.input_tokens, bound.input_tokens),
        (made.output_tokens, bound.output_tokens),
    )
    shares = [min(Fraction(1), Fraction(some, most)) for some, most in amounts if some and most]
    return max(shares, default=Fraction(0))


def _sum_up(price: Price, usage: Usage, cached: int) -> int:
    """Total micro-dollars, rounded up; `cached` stands for the usage's own cached tokens."""
    # in millionths of a micro-dollar: all of it is whole, but for parts of a second
    total: int | Fraction = 0
    if price.per_second:
        rate = find_second_price(price, usage.resolution)
        if rate is None:
            raise LookupError(f"no price for {usage.resolution}")
        total += rate * _MILLION * _need(usage.seconds, "seconds")
    if price.per_image_micros is not None:
        total += price.per_image_micros * _MILLION * _need(usage.images, "images")
    given = made = 0
    if find_cached_price(price) is not None:
        given = _need(usage.input_tokens, "input tokens")
    if price.output_per_million_micros is not None:
        made = _need(usage.output_tokens, "output tokens")
    return _round_up(total + _sum_tokens(price, given, cached, made))


def _sum_tokens(price: Price, given: int, cached: int, made: int) -> int:
    """Millionths of a micro-dollar for a call with so many tokens."""
    fresh_rate = price.input_per_million_micros
    cached_rate = price.cached_per_million_micros
    total = (price.per_call_micros or 0) * _MILLION
    if cached_rate is None:
        total += given * (fresh_rate or 0)
    else:
        cached = min(cached, given)
        total += cached * cached_rate + (given - cached) * (fresh_rate or 0)
    return total + made * (price.output_per_million_micros or 0)


def _round_up(total: int | Fraction) -> int:
    """Whole micro-dollars from millionths of one."""
    return -(-total // _MILLION)


def _need(amount: T | None, what: str) -> T:
    if amount is None:
        raise LookupError(f"no bound of its {what}")
    return amount


def _complete(used: Usage, bound: Usage) -> Usage:
    """`used` with unknown amounts from `bound`, at the requested resolution."""
    return Usage(
        resolution=bound.resolution,
        seconds=_choose(used.seconds, bound.seconds),
        images=_choose(used.images, bound.images),
        input_tokens=_choose(used.input_tokens, bound.input_tokens),
        cached_tokens=max(0, used.cached_tokens),
        output_tokens=_choose(used.output_tokens, bound.output_tokens),
    )


def _choose(amount: A | None, most: A | None) -> A | None:
    """The amount, or the bound's where it is unknown or impossible."""
    return most if amount is None or amount < 0 else amount


def _is_whole(made: Usage, bound: Usage) -> bool:
    """Whether the call used its whole bound. Never for tokens, whose bounds are estimates.

    Seconds and images are exact: the request asks for that many.
    """
    if bound.input_tokens is not None or bound.output_tokens is not None:
        return False
    amounts = (made.seconds, bound.seconds), (made.images, bound.images)
    return all(most is None or (some is not None and some >= most) for some, most in amounts)
