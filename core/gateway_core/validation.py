"""Validation of values from clients by pydantic models, with every problem of every field. Pure.

The texts are the same on every surface (contract §1.1).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from gateway_core.api.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

MOST_UNKNOWN = 50
MOST_PROBLEMS = 200
MOST_NAME = 100
"""Characters of a name in an error."""

_TEXTS: Mapping[str, str] = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "extra_forbidden": "is not a known field",
}


class Request(BaseModel):
    """A body of the Task API: no unknown field, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown(cls, values: Any) -> Any:
        """Drop unknown fields beyond the first ones: each would be a problem to make."""
        if not isinstance(values, dict) or len(values) <= MOST_UNKNOWN:
            return values
        fields = cls.model_fields
        known = {*fields, *(field.alias or name for name, field in fields.items())}
        unknown = islice((name for name in values if name not in known), MOST_UNKNOWN)
        return {name: values[name] for name in (*unknown, *(known & values.keys()))}


class DropNulls(BaseModel):
    """A body in which null means absent."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {k: value for k, value in values.items() if value is not None or k not in fields}


class Creation(Request, DropNulls):
    """A body of the Task API that makes something."""


def _take_whole(value: Any) -> Any:
    """5.0 is an integer too (contract §2.1)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_take_whole)


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """Return the values as a `model`.

    Raises InvalidRequest with every problem of every known field.

    Of problems and unknown fields a bounded number is named, as their text is the client's.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
    raise refuse_details((detail["loc"], detail) for detail in details)


def refuse_details(details: Iterable[tuple[Sequence[str | int], Any]]) -> InvalidRequest:
    """Return the error of the Task form for errors of pydantic, each with its place in the body."""
    problems: dict[str, list[str]] = {}
    for place, detail in islice(details, MOST_PROBLEMS):
        within = [part for part in place[1:] if part != "[key]"]
        shown = "".join(f"[{_shorten(part)}] " for part in within)
        text = shown + describe_problem(detail)
        problems.setdefault(_shorten(place[0]), []).append(text)
    return refuse_fields(problems)


def _shorten(name: str | int) -> str:
    """Return the name of a field or key as an error shows it."""
    text = str(name)
    return text if len(text) <= MOST_NAME else f"{text[:MOST_NAME]}…"


def refuse_fields(problems: Mapping[str, list[str]]) -> InvalidRequest:
    """Return the error of the Task form for problems by public field name."""
    names = ", ".join(problems)
    only = next(iter(problems)) if len(problems) == 1 else None
    return InvalidRequest(f"The request is invalid: {names}.", errors=problems, param=only)


def describe_problem(detail: Any) -> str:
    """Return what is wrong by one of the errors of a pydantic `ValidationError`."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "string_too_short" and context["min_length"] == 1:
        return "must not be empty"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error" and "," not in context["expected"]:
        return f"must be {context['expected']}"
    if kind in ("string_too_short", "too_short") and context["min_length"] == 1:
        return "must not be empty"
    return _TEXTS.get(kind, "is not valid").format(**context)
