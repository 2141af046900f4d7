"""What can be wrong with a model's prices, seen from the operation it serves (contract §2.6, §2.7).

Pure. Used by `catalog`: a model whose calls could not be priced is not offered, and says why.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from gateway_core.contract.conditions import Reason
from gateway_core.contract.model import FieldRule, Price
from gateway_core.contract.money import to_decimal_text
from gateway_core.domain.operations import Operation
from gateway_core.domain.pricing import (
    ANY_RESOLUTION,
    Usage,
    effective_time,
    find_second_price,
    list_units,
    quote,
)

MOST_CALL_MICROS = 10**12
"""Micro-dollars (a million dollars) that one call may cost: thousands of them add up exactly in
every place that counts, a double's 53 bits included."""


def check_prices(
    operation: Operation, rules: Mapping[str, FieldRule], prices: list[Price] | None
) -> tuple[Reason, str] | None:
    """Why calls of a model cannot be priced by these, and what to mend; None if they can."""
    if not prices:
        text = "spec.prices must be given; perCallMicros: 0 makes it free"
        return Reason.PRICE_MISSING, text
    times = Counter(effective_time(price) for price in prices)
    if max(times.values()) > 1:
        text = "two of spec.prices take effect at the same time, so that neither is the last"
        return Reason.INVALID_PRICE, text
    resolutions = list_resolutions(operation, rules)
    for price in prices:
        problem = _check_price(operation, rules, resolutions, price)
        if problem is not None:
            return problem
    return None


def list_resolutions(operation: Operation, rules: Mapping[str, FieldRule]) -> tuple[str, ...]:
    """The resolutions that calls of a model can have; `*` alone where they have none."""
    field, rule = operation.field("output_resolution"), rules.get("output_resolution")
    if field is None or (rule is not None and not rule.supported):
        return (ANY_RESOLUTION,)
    allowed = field.values if rule is None or rule.allowed is None else rule.allowed
    return tuple(value for value in field.values if value in allowed)


def _check_price(
    operation: Operation,
    rules: Mapping[str, FieldRule],
    resolutions: tuple[str, ...],
    price: Price,
) -> tuple[Reason, str] | None:
    foreign = [unit for unit in list_units(price) if unit not in operation.units]
    if foreign:
        known = " and ".join(f"by {unit}" for unit in operation.units)
        text = f"spec.prices is by {foreign[0]}, but calls of {operation.action} are priced {known}"
        return Reason.INVALID_PRICE, text
    bound = _bound_all(operation, rules)
    if price.per_second:
        if bound.seconds is None:
            text = "spec.prices is by second, but spec.fields leaves calls without duration_seconds"
            return Reason.INVALID_PRICE, text
        missing = [name for name in resolutions if find_second_price(price, name) is None]
        if missing:
            text = f"spec.prices has no price per second for {', '.join(missing)}"
            return Reason.PRICE_MISSING, text
    dearest = max(quote(price, replace(bound, resolution=name)) for name in resolutions)
    if dearest > MOST_CALL_MICROS:
        text = (
            f"by spec.prices one call may cost {to_decimal_text(dearest)} USD,"
            f" and at most {to_decimal_text(MOST_CALL_MICROS)} can be charged"
        )
        return Reason.INVALID_PRICE, text
    return None


def _bound_all(operation: Operation, rules: Mapping[str, FieldRule]) -> Usage:
    """The most that any call makes, apart from its resolution."""
    field, rule = operation.field("duration_seconds"), rules.get("duration_seconds")
    if field is None or (rule is not None and not rule.supported):
        return Usage()
    most = field.maximum if rule is None or rule.maximum is None else rule.maximum
    return Usage(seconds=Fraction(min(most, field.maximum)))
