"""Limits of keys and guardrails: shown, and read from forms. Pure."""

from decimal import Decimal, InvalidOperation
from typing import Any, get_args

from gateway_apiserver.surfaces.console.parts import NOTHING, Cell, Field, show_cents
from gateway_apiserver.surfaces.console.seats import Values
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.api.limits import Window

_WINDOWS = [("", "No limit"), *((window, window) for window in get_args(Window))]
_LISTS = ("allowed_models", "allowed_providers", "denied_models", "denied_providers")


def read_limits(values: Values) -> dict[str, Any]:
    """Limits as the operations take them; an empty field is none. InvalidRequest."""
    limits: dict[str, Any] = {
        "limit_cents": _read_cents(values.get("limit", "")),
        "limit_window": values.get("limit_window") or None,
        "rpm_limit": _read_count(values.get("rpm_limit", "")),
    }
    for name in _LISTS[:2]:
        limits[name] = values.get(name, "").split() or None
    return limits


def read_guardrail(values: Values) -> dict[str, Any]:
    """Limits of a guardrail as the operations take them. InvalidRequest."""
    lists = {name: values.get(name, "").split() or None for name in _LISTS}
    return {**read_limits(values), "description": values.get("description") or None, **lists}


def _read_cents(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        cents = Decimal(text.strip()) * 100
    except InvalidOperation:
        raise refuse_fields({"limit": ["must be an amount in dollars"]}) from None
    if not cents.is_finite() or cents != cents.to_integral_value() or abs(cents) > 10**15:
        raise refuse_fields({"limit": ["must be an amount in whole cents"]})
    return int(cents)


def _read_count(text: str) -> int | None:
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 12):
        raise refuse_fields({"rpm_limit": ["must be a whole number"]})
    return int(text)


def limit_fields(each: Any) -> list[Field]:
    """Controls of the limits of a key, with what it has."""
    cents, rate = each.get("limit_cents"), each.get("rpm_limit")
    hint = "With spaces between; a * at the end of one stands for any rest. Empty: all."
    return [
        Field("limit", "Limit in dollars", "number", "" if cents is None else f"{cents / 100:.2f}"),
        Field("limit_window", "Window", "select", each.get("limit_window") or "", options=_WINDOWS),
        Field("rpm_limit", "Calls a minute", "number", "" if rate is None else str(rate)),
        *(
            Field(name, title, value=" ".join(each.get(name) or ()), hint=hint, most=4000)
            for name, title in zip(_LISTS[:2], ("Allowed models", "Allowed providers"), strict=True)
        ),
    ]


def guardrail_fields(each: Any) -> list[Field]:
    """Controls of the limits of a guardrail, with what it has."""
    return [
        Field("description", "Description", value=each.get("description") or "", most=1000),
        *limit_fields(each),
        *(
            Field(name, title, value=" ".join(each.get(name) or ()), most=4000)
            for name, title in zip(_LISTS[2:], ("Denied models", "Denied providers"), strict=True)
        ),
    ]


def show_lists(each: Any) -> list[tuple[str, Cell]]:
    """The lists of models and providers that are set."""
    return [
        (name.replace("_", " ").capitalize(), Cell(", ".join(each[name]) or "none"))
        for name in _LISTS
        if each.get(name) is not None
    ]


def share_used(each: Any) -> float | None:
    """The part of the limit that is used, 0 to 1; None where it is not known."""
    limit, used = each["limit_cents"], each["used_cents"]
    return used / limit if limit and used is not None else None


def show_limit(each: Any) -> str:
    """The limit and its window."""
    if each["limit_cents"] is None:
        return NOTHING
    return f"{show_cents(each['limit_cents'])} ({each['limit_window']})"
