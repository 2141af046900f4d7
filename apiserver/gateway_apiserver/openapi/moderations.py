"""Moderations in the document. Pure."""

from collections.abc import Iterable
from typing import Any

from gateway_apiserver.openapi.compat import describe_operation
from gateway_apiserver.openapi.schemas import Schema, close_schema
from gateway_core.providers.moderation import CATEGORIES, MOST_INPUTS

PATH = "/v1/moderations"
_REFUSALS = (400, 401, 402, 403, 404, 409, 413, 415, 429, 500, 502, 503, 504)


def describe_moderation(models: Iterable[str], *, has_default: bool) -> dict[str, Any]:
    """The path, for the models that can be called."""
    body = describe_moderation_body(models)
    body["required"] = ["input"] if has_default else ["model", "input"]
    described = describe_operation(
        "createModeration", "Judge texts and images", "Moderation", _REFUSALS, body=body, paid=True
    )
    return {PATH: {"post": described}}


def describe_moderation_body(models: Iterable[str]) -> Schema:
    """A body; what is in it beside these is ignored."""
    image = {"type": "string", "pattern": "^([Hh][Tt][Tt][Pp][Ss]?://|[Dd][Aa][Tt][Aa]:)"}
    part = {
        "oneOf": [
            {
                "type": "object",
                "required": ["type", "text"],
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
            },
            {
                "type": "object",
                "required": ["type", "image_url"],
                "properties": {
                    "type": {"const": "image_url"},
                    "image_url": {
                        "type": "object",
                        "required": ["url"],
                        "properties": {"url": image},
                    },
                },
            },
        ]
    }
    bounds = {"type": "array", "minItems": 1, "maxItems": MOST_INPUTS}
    return {
        "type": "object",
        "required": ["input"],
        "properties": {
            "model": {"type": ["string", "null"], "enum": [*models, None]},
            "input": {
                "description": "A text, texts with a result each, or parts with one result.",
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {**bounds, "items": {"type": "string"}},
                    {**bounds, "items": part},
                ],
            },
        },
    }


def describe_moderation_shapes() -> dict[str, Schema]:
    """The answer."""

    def each(value: Schema) -> Schema:
        return close_schema(dict.fromkeys(CATEGORIES, value))

    result = close_schema(
        {
            "flagged": {"type": "boolean"},
            "categories": each({"type": "boolean"}),
            "category_scores": each({"type": "number", "minimum": 0, "maximum": 1}),
            "category_applied_input_types": each(
                {"type": "array", "items": {"enum": ["text", "image"]}}
            ),
        }
    )
    text = {"type": "string"}
    return {
        "Moderation": close_schema(
            {"id": text, "model": text, "results": {"type": "array", "items": result}}
        )
    }
