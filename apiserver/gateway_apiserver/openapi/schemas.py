"""JSON Schemas of what goes in and out of the Task and account API. Pure.

Request schemas come from the operation's table and say what the server takes, null for an absent
optional field included, so that a generator of requests finds neither more nor less.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway_apiserver.surfaces.account import Balance, Me
from gateway_apiserver.surfaces.pricing.routes import PriceList, QuoteAnswer
from gateway_core.api.ids import TASK_PREFIX
from gateway_core.providers.catalog import Model
from gateway_core.tasks.operations import MAX_URL, Field, Operation

Schema = dict[str, Any]

TASK_ID_PATTERN = f"^{TASK_PREFIX}_[a-z0-9-]{{1,57}}$"
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
    """The request body of one path, for the models that are served there."""
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
    """A body with the required fields, which the first model takes."""
    values: dict[str, Any] = {
        "text": "A lighthouse at dusk, waves against the rocks",
        "url": "https://example.com/reference.png",
        "urls": ["https://example.com/reference.png"],
    }
    body = {field.name: values[field.type] for field in operation.fields if field.required}
    return {**body, "model": next(iter(models))}


def describe_components() -> dict[str, Schema]:
    """Every named schema; the task's representations take no other property (contract §2.3)."""
    task_id = {"type": "string", "pattern": TASK_ID_PATTERN}
    text = {"type": "string", "minLength": 1}
    video = close_schema({"url": {"type": "string", "format": "uri"}})
    usage = close_schema({"cost": {"type": "number", "minimum": 0, "description": "US dollars."}})
    field_errors = {"type": "array", "items": text, "minItems": 1}
    return {
        "TaskAccepted": close_schema(
            {
                "id": task_id,
                "status": {"const": "processing"},
                "task_replayed": {"const": True},
            },
            optional=("task_replayed",),
        ),
        "TaskProcessing": close_schema({"id": task_id, "status": {"const": "processing"}}),
        "TaskCompleted": close_schema(
            {
                "id": task_id,
                "status": {"const": "completed"},
                "videos": {"type": "array", "items": video},
                "usage": usage,
            }
        ),
        "TaskFailed": close_schema({"id": task_id, "status": {"const": "failed"}, "error": text}),
        "Error": close_schema({"error": text}),
        "FieldErrors": close_schema(
            {"error": text, "errors": {"type": "object", "additionalProperties": field_errors}}
        ),
        "Me": inline_schema(Me.model_json_schema()),
        "Balance": inline_schema(Balance.model_json_schema()),
        "PriceList": inline_schema(PriceList.model_json_schema()),
        "PriceQuote": inline_schema(QuoteAnswer.model_json_schema()),
    }


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
    """A URL that leads out of the gateway's own network, by its text."""
    return _describe_url(_NAME)


def _describe_url(hosts: str) -> Schema:
    pattern = f"^[Hh][Tt][Tt][Pp][Ss]?://({hosts}){_REST}"
    return {"type": "string", "maxLength": MAX_URL, "pattern": pattern}


def _shared_default(field: Field, models: Iterable[Model]) -> Any:
    """The default that holds whichever model is selected, None where they differ."""
    defaults = []
    for model in models:
        rule = model.rules.get(field.name)
        own = rule.default if rule is not None and rule.supported else None
        defaults.append(field.default if own is None else orjson.loads(own))
    return defaults[0] if all(value == defaults[0] for value in defaults) else None


def close_schema(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object of these properties and no other."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def inline_schema(schema: Schema) -> Schema:
    """A pydantic schema without definitions of its own, closed."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return resolve(definitions[node["$ref"].rpartition("/")[2]])
        node = {key: resolve(value) for key, value in node.items() if key != "title"}
        return {"additionalProperties": False, **node} if node.get("type") == "object" else node

    resolved: Schema = resolve(schema)
    return resolved
