"""Schemas of moderations; `gateway_core.providers.moderation` validates the body."""

from collections.abc import Iterable
from typing import Any

from gateway_apiserver.routing import Schema
from gateway_core.providers.moderation import CATEGORIES, MOST_INPUTS
from gateway_core.tasks.schemas import close_schema

_IMAGE = {"type": "string", "pattern": "^([Hh][Tt][Tt][Pp][Ss]?://|[Dd][Aa][Tt][Aa]:)"}
_URL = {"type": "object", "required": ["url"], "properties": {"url": _IMAGE}}
_INPUT_BOUNDS = {"type": "array", "minItems": 1, "maxItems": MOST_INPUTS}


def _describe_part(kind: str, content: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["type", kind],
        "properties": {"type": {"const": kind}, kind: content},
    }


_PARTS = [_describe_part("text", {"type": "string"}), _describe_part("image_url", _URL)]
_INPUT = {
    "description": "A text, texts with a result each, or parts with one result.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {**_INPUT_BOUNDS, "items": {"type": "string"}},
        {**_INPUT_BOUNDS, "items": {"oneOf": _PARTS}},
    ],
}


def describe_body(models: Iterable[str], *, needs_model: bool = False) -> Schema:
    """A body for these models; what is in it beside these fields is ignored."""
    return {
        "type": "object",
        "required": ["model", "input"] if needs_model else ["input"],
        "properties": {
            "model": {"type": ["string", "null"], "enum": [*models, None]},
            "input": _INPUT,
        },
    }


def _describe_each(value: Any) -> Schema:
    return close_schema(dict.fromkeys(CATEGORIES, value))


_RESULT = close_schema(
    {
        "flagged": {"type": "boolean"},
        "categories": _describe_each({"type": "boolean"}),
        "category_scores": _describe_each({"type": "number", "minimum": 0, "maximum": 1}),
        "category_applied_input_types": _describe_each(
            {"type": "array", "items": {"enum": ["text", "image"]}}
        ),
    }
)
RESPONSE = close_schema(
    {
        "id": {"type": "string"},
        "model": {"type": "string"},
        "results": {"type": "array", "items": _RESULT},
    }
)
