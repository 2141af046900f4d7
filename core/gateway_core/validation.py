"""Validation of values from clients by pydantic models, with every problem of every field. Pure.

The texts are the same on every surface (contract §1.1).
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from gateway_core.api.errors import InvalidRequest

M = TypeVar("M", bound=BaseModel)

_TEXTS: Mapping[str, str] = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
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
    """The values as a `model`. Raises InvalidRequest with every problem of every field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False, include_input=False):
            within = [part for part in detail["loc"][1:] if part != "[key]"]
            text = "".join(f"[{part}] " for part in within) + describe_problem(detail)
            problems.setdefault(str(detail["loc"][0]), []).append(text)
    raise refuse_fields(problems)


def refuse_fields(problems: Mapping[str, list[str]]) -> InvalidRequest:
    """The error of the Task form for problems by public field name."""
    names = ", ".join(problems)
    only = next(iter(problems)) if len(problems) == 1 else None
    return InvalidRequest(f"The request is invalid: {names}.", errors=problems, param=only)


def describe_problem(detail: Any) -> str:
    """What is wrong by one of the errors of a pydantic `ValidationError`."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    return _TEXTS.get(kind, "is not valid").format(**context)
