"""Price of a call: one calculation quotes, reserves and charges (contract §2.7).

`token_prices` has that of tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from gateway_core.api.price import Price
from gateway_core.billing.token_prices import has_token_rates

T = TypeVar("T")
A = TypeVar("A", int, Fraction)

ANY_RESOLUTION = "*"
_EPOCH = datetime.fromtimestamp(0, UTC)


class Unit(StrEnum):
    """Units that a price can be for."""

    CALL = "call"
    SECOND = "second"
    IMAGE = "image"
    TOKEN = "token"  # noqa: S105 - a unit, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Amounts that a call has used, or may use at most (a bound); None where unknown."""

    resolution: str = ANY_RESOLUTION
    seconds: Fraction | None = None
    images: int | None = None


def bound_task(values: Mapping[str, Any]) -> Usage:
    """Return the bound of a task with these values (defaults applied)."""
    seconds = values.get("duration_seconds")
    return Usage(
        resolution=str(values.get("output_resolution", ANY_RESOLUTION)),
        seconds=None if seconds is None else Fraction(seconds),
    )


def floor_moment(now: datetime) -> datetime:
    """Return the whole second at which a call's price is looked up, which clients also see."""
    return (now if now.tzinfo is UTC else now.astimezone(UTC)).replace(microsecond=0)


def select_price(prices: Sequence[Price], at: datetime) -> Price | None:
    """Return the price in force at `at` (aware): the latest that has taken effect."""
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
    given = {
        Unit.CALL: price.per_call_micros is not None,
        Unit.SECOND: bool(price.per_second),
        Unit.IMAGE: price.per_image_micros is not None,
        Unit.TOKEN: has_token_rates(price),
    }
    return tuple(unit for unit, is_given in given.items() if is_given)


def find_second_price(price: Price, resolution: str) -> int | None:
    """Micro-dollars a second at a resolution; None where the price has none."""
    rates = {rate.resolution: rate.micros for rate in price.per_second or ()}
    return rates.get(resolution, rates.get(ANY_RESOLUTION))


def quote(price: Price, bound: Usage) -> int:
    """Return the most micro-dollars of a call within `bound`: the amount quoted and reserved.

    LookupError where the price has a unit that the bound lacks, or no rate for its resolution.
    """
    total: int | Fraction = price.per_call_micros or 0
    if price.per_second:
        rate = find_second_price(price, bound.resolution)
        if rate is None:
            raise LookupError(f"no price for {bound.resolution}")
        total += rate * _need(bound.seconds, "seconds")
    if price.per_image_micros is not None:
        total += price.per_image_micros * _need(bound.images, "images")
    return ceil(total)


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
            return min(reserved, quote(price, made))
    except LookupError:
        pass
    return ceil(reserved * _find_share(made, bound))


def _find_share(made: Usage, bound: Usage) -> Fraction:
    """Return the used part of `bound`, 0 to 1: the largest of its amounts' parts.

    How the reservation was divided among the amounts is unknown, and no division gives more.
    """
    amounts = (
        (made.seconds, bound.seconds),
        (made.images, bound.images),
    )
    shares = [min(Fraction(1), Fraction(some, most)) for some, most in amounts if some and most]
    return max(shares, default=Fraction(0))


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
    )


def _choose(amount: A | None, most: A | None) -> A | None:
    """Return the amount, or the bound's where it is unknown or impossible."""
    return most if amount is None or amount < 0 else amount


def _is_whole(made: Usage, bound: Usage) -> bool:
    """Return whether the call used its whole bound, which the request asks for exactly."""
    amounts = (made.seconds, bound.seconds), (made.images, bound.images)
    return all(most is None or (some is not None and some >= most) for some, most in amounts)
