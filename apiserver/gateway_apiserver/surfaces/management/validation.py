"""Bodies and queries against their models, and what is wrong with them in the project's words.

Strict where the gateway owns the schema: an unknown name is an error (contract §0.2), a problem
stands under the public name of its field (§1.1).
"""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.bodies import read_json_body
from gateway_core.api.errors import InvalidRequest
from gateway_core.tasks.operations import MAX_BODY_BYTES
from gateway_core.tasks.validation import parse_body

M = TypeVar("M", bound=BaseModel)

ROOT = "/api/v1/management"

_TEXTS: Mapping[str, str] = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "literal_error": "must be one of {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
}


def validate(model: type[M], values: Mapping[str, Any]) -> M:
    """The values as a `model`. InvalidRequest with every problem of every field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems: dict[str, list[str]] = {}
        for detail in error.errors(include_url=False, include_input=False):
            problems.setdefault(str(detail["loc"][0]), []).append(_describe(detail))
    raise refuse_fields(problems)


async def read_body(call: Call, model: type[M], *, optional: bool = False) -> M:
    """The JSON body as a `model`; an `optional` one may be absent.

    Raises UnsupportedMediaType, TooLarge, InvalidRequest.
    """
    if optional and not call.has_body and b"content-type" not in dict(call.headers):
        return validate(model, {})
    raw = await read_json_body(call.headers, call.receive, MAX_BODY_BYTES)
    return validate(model, parse_body(raw))


def read_query(model: type[M], query: bytes, lists: frozenset[str] = frozenset()) -> M:
    """The query string as a `model`; of `lists`, values are split at commas and may be repeated.

    InvalidRequest, also for a name that is unknown or is there twice.
    """
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise InvalidRequest("The query is not valid UTF-8.") from None
    values: dict[str, Any] = {}
    problems: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in lists:
            values.setdefault(name, []).extend(part for part in value.split(",") if part)
        elif name in values:
            problems[name] = ["was given more than once"]
        else:
            values[name] = value
    if problems:
        raise refuse_fields(problems)
    return validate(model, values)


def refuse_fields(problems: Mapping[str, list[str]]) -> InvalidRequest:
    """The error for problems by public field name."""
    names = ", ".join(problems)
    only = next(iter(problems)) if len(problems) == 1 else None
    return InvalidRequest(f"The request is invalid: {names}.", errors=problems, param=only)


def _describe(detail: Mapping[str, Any]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return "is not a known field"
    if kind == "value_error":
        text = str(context["error"])
    else:
        text = _TEXTS.get(kind, "is not valid").format(**context)
    within = [part for part in detail["loc"][1:] if part != "[key]"]
    return "".join(f"[{part}] " for part in within) + text
