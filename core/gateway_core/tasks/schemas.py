"""JSON Schemas of task bodies, from the fields that operations declare. Pure.

They say exactly what the server takes, null for an absent optional field included.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway_core.providers.catalog import Model
from gateway_core.tasks.operations import MAX_URL, Field, Operation

Schema = dict[str, Any]

NOT_BLANK = r"[^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""A character that Python's `strip` leaves; what `\\s` means differs between dialects."""
_MARKS = "_~!$&'()*+,;="
_NAME = rf"([A-Za-z0-9.{_MARKS}-]*\.)?[A-Za-z{_MARKS}-][A-Za-z0-9{_MARKS}-]*\.?"
"""A host that is no IPv4 address in any spelling: its last label does not begin with a digit."""
_ANY_HOST = rf"[A-Za-z0-9.{_MARKS}-]+|\[::1\]|\[([0-9A-Fa-f]{{1,4}}:){{7}}[0-9A-Fa-f]{{1,4}}\]"
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_REST = rf"(:(0*({_PORT}))?)?([/?#][^\x00-\x20\x7f-\x9f\\\ufffe\uffff]*)?$"


def describe_body(
    operation: Operation, models: Mapping[str, Model], *, loopback_callbacks: bool
) -> Schema:
    """Return the request body of one path, for the models that are served there."""
    properties = {}
    for field in operation.fields:
        properties[field.name] = _describe_field(field, models, loopback_callbacks)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [field.name for field in operation.fields if field.required],
        "properties": properties,
    }


def example_body(operation: Operation, models: Mapping[str, Model]) -> dict[str, Any]:
    """Return a body with the required fields, which the first model takes."""
    values: dict[str, Any] = {
        "text": "A lighthouse at dusk, waves against the rocks",
        "url": "https://example.com/reference.png",
        "urls": ["https://example.com/reference.png"],
    }
    body = {field.name: values[field.type] for field in operation.fields if field.required}
    return {**body, "model": next(iter(models))}


def _describe_field(field: Field, models: Mapping[str, Model], loopback: bool) -> Schema:
    schema: Schema
    if field.name == "model":
        schema = {"type": "string", "enum": list(models)}
    elif field.type == "text":
        schema = {"type": "string", "pattern": NOT_BLANK}
        schema |= {"minLength": field.minimum, "maxLength": field.maximum}
    elif field.type == "choice":
        schema = {"type": "string", "enum": list(field.values)}
    elif field.type == "boolean":
        schema = {"type": "boolean"}
    elif field.type == "integer":
        schema = {"type": "integer", "minimum": field.minimum, "maximum": field.maximum}
    elif field.type == "url":
        schema = _describe_url(_NAME + (r"|127\.0\.0\.1" if loopback else ""))
    else:
        schema = {
            "type": "array",
            "items": _describe_url(_ANY_HOST),
            "minItems": field.minimum,
            "maxItems": field.maximum,
        }
    schema["description"] = field.description
    if not field.required:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
        default = _shared_default(field, models.values())
        if default is not None:
            schema["default"] = default
    return schema


def describe_public_url() -> Schema:
    """Return a URL that leads out of the gateway's own network, by its text."""
    return _describe_url(_NAME)


def _describe_url(hosts: str) -> Schema:
    pattern = f"^[Hh][Tt][Tt][Pp][Ss]?://({hosts}){_REST}"
    return {"type": "string", "maxLength": MAX_URL, "pattern": pattern}


def _shared_default(field: Field, models: Iterable[Model]) -> Any:
    """Return the default that holds whichever model is selected, None where they differ."""
    defaults = []
    for model in models:
        rule = model.rules.get(field.name)
        own = rule.default if rule is not None and rule.supported else None
        defaults.append(field.default if own is None else orjson.loads(own))
    return defaults[0] if all(value == defaults[0] for value in defaults) else None


def close_schema(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Return an object of these properties and no other."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }
