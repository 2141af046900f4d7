"""What translations of requests between formats share; what has no translation is a 400."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import orjson

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import as_object, as_objects, find_field, unsupported
from gateway_core.llm.formats.media import read_data_url
from gateway_core.llm.formats.requests import to_camel

T = TypeVar("T")

CANNOT = "is not supported by this model's provider"

IGNORED = frozenset(
    {
        "client_metadata",
        "metadata",
        "model",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
"""Fields of OpenAI's formats that do not change what the model writes."""

_SUBSET = frozenset(
    {
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "nullable",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    }
)
"""Keywords of JSON Schema in Google's `Schema`."""
_FORMATS = frozenset({"date-time", "double", "enum", "float", "int32", "int64"})
"""Values of `format` in Google's `Schema`, which refuses others."""
_COUNTS = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
"""Keywords that Google's JSON has as strings, being 64-bit integers."""
_MOST_DEPTH = 50
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
"""Values that ask for nothing."""
_RESULT_NAMES = frozenset({"output", "error"})
_MOST_RESULT_DEPTH = 32
_MOST_INTEGER = 2**53


def refuse(path: str, reason: str = CANNOT) -> InvalidRequest:
    """Return the error for a field without a translation; `path` begins with its top-level name."""
    return unsupported(find_field(path), path, reason)


def refuse_others(body: Mapping[str, Any], known: Collection[str], within: str = "") -> None:
    """Refuse the fields that are not in `known`, unless their value asks for nothing."""
    for name, value in body.items():
        if name not in known and value not in _NOTHING:
            raise refuse(within + name)


def leave_out(
    body: Mapping[str, Any], harmless: Collection[str], dropped: list[str], within: str = ""
) -> None:
    """Note in `dropped` the fields that are in `harmless`, unless their value asks for nothing."""
    dropped += [
        within + name for name, value in body.items() if name in harmless and value not in _NOTHING
    ]


def list_items(value: Any, path: str) -> list[Any]:
    """Return the items of an optional array. InvalidRequest if it is something else."""
    if value is None:
        return []
    if not isinstance(value, list):
        name = path.partition(".")[0].partition("[")[0]
        raise InvalidRequest(f"{path} must be an array.", code="invalid_type", param=name)
    return value


def find_word(words: Mapping[str, T], value: Any, path: str) -> T:
    """Return what a word of one format is in the other; refuses words without a translation."""
    if isinstance(value, str) and value in words:
        return words[value]
    raise refuse(path, f"must be one of {', '.join(words)} for this model's provider")


def split_data_url(url: Any, path: str) -> tuple[str, str]:
    """Media type and base64 of a data URL; refuses other URLs."""
    read = read_data_url(url) if isinstance(url, str) else None
    if read is None:
        raise refuse(path, "must be a data URL for this model's provider")
    return read


def is_in_subset(schema: Any, depth: int = _MOST_DEPTH) -> bool:
    """Return whether Google's `Schema` can express a JSON Schema; what it refuses is not in it."""
    if not isinstance(schema, dict) or not depth or not set(schema) <= _SUBSET:
        return False
    kind, enum = schema.get("type", ""), schema.get("enum", [])
    if not isinstance(kind, str) or schema.get("format", "int32") not in _FORMATS:
        return False
    if kind == "object" and not schema.get("properties"):
        return False
    if not isinstance(enum, list) or not all(isinstance(value, str) and value for value in enum):
        return False
    if enum and kind != "string":
        return False
    inner = [*as_object(schema.get("properties")).values(), *as_objects(schema.get("anyOf"))]
    inner += [schema["items"]] if "items" in schema else []
    return all(is_in_subset(item, depth - 1) for item in inner)


def to_json_schema(schema: Any, depth: int = _MOST_DEPTH) -> Any:
    """Return a Google `Schema`, whose types may be in capitals, as JSON Schema."""
    if isinstance(schema, list):
        return [to_json_schema(item, depth) for item in schema]
    if not isinstance(schema, dict) or not depth:
        return schema
    result: dict[str, Any] = {}
    for given, value in schema.items():
        name = to_camel(given)
        if name == "type" and isinstance(value, str):
            result[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            result[name] = {key: to_json_schema(item, depth - 1) for key, item in value.items()}
        elif name in ("items", "anyOf"):
            result[name] = to_json_schema(value, depth - 1)
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal():
            result[name] = int(value)
        elif name not in ("nullable", "propertyOrdering"):
            result[name] = value
    return _make_nullable(result) if schema.get("nullable") is True else result


def _make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema that takes null besides."""
    if isinstance(schema.get("anyOf"), list):
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if isinstance(schema.get("enum"), list):
        schema = schema | {"enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        schema = schema | {"type": [schema["type"], "null"]}
    return schema


def to_result(text: str) -> dict[str, Any]:
    """Return the result of a function as Google has it: an object, or the text in one.

    A text in JSON becomes an object only where Google takes that for the same: it reads `$ref` as a
    pointer to another part, shows the model nothing beside `output` and `error`, keeps numbers as
    floats of 64 bits, and refuses deep levels.
    """
    try:
        parsed = orjson.loads(text)
    except ValueError:
        parsed = None
    if (
        isinstance(parsed, dict)
        and parsed
        and not _RESULT_NAMES & parsed.keys()
        and _is_plain(parsed)
        # what is written anew in another form has lost something, such as a repeated key
        and any(text == form for form in _write_all(parsed, has_lines="\n" in text))
    ):
        return parsed
    return {"result": text}


def _write_all(value: Any, *, has_lines: bool) -> Iterator[str]:
    """JSON of a value, as encoders usually write it: `has_lines`, with line breaks or without."""
    if not has_lines:
        yield orjson.dumps(value).decode()
    for ascii_ in (True, False):
        if has_lines:
            yield from (json.dumps(value, ensure_ascii=ascii_, indent=indent) for indent in (2, 4))
        else:
            yield json.dumps(value, ensure_ascii=ascii_)
            yield json.dumps(value, ensure_ascii=ascii_, separators=(",", ":"))


def _is_plain(value: Any, depth: int = _MOST_RESULT_DEPTH) -> bool:
    if isinstance(value, dict):
        return bool(depth) and all(
            not name.startswith("$") and _is_plain(item, depth - 1) for name, item in value.items()
        )
    if isinstance(value, list):
        return bool(depth) and all(_is_plain(item, depth - 1) for item in value)
    return type(value) is not int or abs(value) <= _MOST_INTEGER


def join_texts(content: Any, path: str) -> str:
    """Return the text of a message whose content must be text: a string, or parts of text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for place, part in enumerate(content if isinstance(content, list) else [content]):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise refuse(f"{path}[{place}]", "must be text for this model's provider")
        texts.append(text)
    return "\n".join(texts)
