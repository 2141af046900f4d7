"""Markdown of the reference: rows, and fields of a JSON schema."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "≥ {} characters",
    "maxLength": "≤ {} characters",
    "minItems": "≥ {} items",
    "maxItems": "≤ {} items",
    "minProperties": "≥ {} entries",
    "maxProperties": "≤ {} entries",
    "format": "{}",
}
MOST_VALUES = 12


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells may hold anything but a line break that matters."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(escape_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def escape_cell(text: str) -> str:
    """Return one line for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def quote_code(text: str) -> str:
    """Return a text as code, also where it has a backtick."""
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def list_fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield path, schema and necessity of each field below an object, the outer first.

    `[]` in a path stands for an item of an array, `<name>` for the name of an entry.
    """
    for name, part in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, part, name in schema.get("required", ())
        yield from list_fields(*_enter(part, path))


def show_type(schema: Schema) -> str:
    """Return the type and the bounds of a value."""
    if "const" in schema:
        return quote_code(_show(schema["const"]))
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(show_type(choice) for choice in choices))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return _show_values(schema["enum"])
    kind = schema.get("type", "any")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        kind = f"array of {show_type(schema.get('items', {}))}"
    elif isinstance(schema.get("additionalProperties"), dict):
        kind = f"map of {show_type(schema['additionalProperties'])}"
    bounds = [
        text.format(_show_bound(schema[name])) for name, text in _BOUNDS.items() if name in schema
    ]
    return ", ".join([kind, *bounds])


def _show_bound(bound: Any) -> Any:
    """Return a bound as it was declared: FastAPI writes those of integers as fractions."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def show_default(schema: Schema) -> str:
    """Return the default as code; empty where there is none."""
    value = schema.get("default")
    return "" if value in (None, "", [], {}) else quote_code(_show(value))


def _enter(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return the object that a field holds, alone, in an array or in a map."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") in ("object", "array"):
            return _enter(choice, path)
    if schema.get("type") == "array":
        return _enter(schema.get("items", {}), path + "[]")
    if isinstance(schema.get("additionalProperties"), dict) and not schema.get("properties"):
        return _enter(schema["additionalProperties"], path + ".<name>")
    return schema, path


def _show_values(values: Sequence[Any]) -> str:
    shown = [quote_code(_show(value)) for value in values[:MOST_VALUES]]
    return ", ".join(shown) + (", …" if len(values) > MOST_VALUES else "")


def _show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return value if isinstance(value, str) else repr(value)
