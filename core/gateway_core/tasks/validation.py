"""Validation of request bodies by operation (400) and by model (409): contract §2.1. Pure.

Used by the API's admission, and by the operator for tasks created with kubectl.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from math import isinf
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway_core.api.errors import Conflict, InvalidRequest
from gateway_core.api.model import FieldRule
from gateway_core.tasks.operations import MAX_URL, Field, Operation

_NOT_IN_URL = re.compile(r"[\x00-\x20\x7f-\x9f\\\ufffe\uffff]")
_BRACKETED = re.compile(r"\[[^\[\]]*\](:[0-9]*)?")
"""An IPv6 host with or without a port; `urlsplit` accepts any text around the brackets."""


# without the look-behind the effort is quadratic in the length of shorter numbers; two searches
# take a third of the time of one with both
_LARGE_NUMBERS = (re.compile(rb"(?<![0-9])[0-9]{309}"), re.compile(rb"[0-9.][eE]\+?[0-9]{3}"))
_UP_TO_LARGE_NUMBER = re.compile(
    rb"""(?sx)
    ( (?: [^"0-9]++                                    # whitespace, punctuation, literals, signs
        | "(?: [^"\\]++ | \\. )*+"?                     # a string
        | [0-9]{1,308}+ (?: \.[0-9]*+ )?+ (?![0-9eE])  # a number that a double can hold
      )*+
    )
    (?: ([0-9]++ (?: \.[0-9]*+ )? (?: [eE][+-]?[0-9]*+ )?) | \Z )
    """
)
"""Text before a number, and the number. Possessive quantifiers keep the effort linear."""
_NUMBER = re.compile(rb"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MOST_LARGE_NUMBERS = 1000
_MOST_BYTES_BOUNDED = 256 * 1024
"""Longest body in which large numbers are replaced, at 0.1 ms a KiB. More than the fields of an
operation can need; in longer bodies such numbers are invalid JSON."""
_LARGEST = b"1e308"


class _Bad(ValueError):
    """Problems of one field."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in `raw`. InvalidRequest in the simple form if there is none."""
    return _read_object(raw, _parse)


def parse_exact_body(raw: bytes) -> dict[str, Any]:
    """Return the same of a body that is passed on: a number beyond a double makes it invalid."""
    return _read_object(raw, orjson.loads)


def _read_object(raw: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    try:
        body = parse(raw)
    except orjson.JSONDecodeError as error:
        text = f"not valid JSON (line {error.lineno}, column {error.colno})"
        if not raw.strip():
            text = "empty, and must be a JSON object"
        raise InvalidRequest(f"The body is {text}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    return body


def _parse(raw: bytes) -> Any:
    """Return the JSON value in `raw`.

    Numbers beyond a double become the largest, which no field accepts.

    orjson rejects such valid JSON as a whole, but the client should learn which field is wrong.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if len(raw) > _MOST_BYTES_BOUNDED or not any(n.search(raw) for n in _LARGE_NUMBERS):
            raise
        return orjson.loads(_UP_TO_LARGE_NUMBER.sub(_bound, raw, _MOST_LARGE_NUMBERS))


def _bound(found: re.Match[bytes]) -> bytes:
    before, number = found.groups()
    if number is None:
        return bytes(before)
    # invalid numbers such as `01e999` and `1.e999` stay, for orjson to reject
    is_large = _NUMBER.fullmatch(number) and isinf(float(number))
    return bytes(before + (_LARGEST if is_large else number))


def check_shape(operation: Operation, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body's values, normalised, without defaults; null counts as absent.

    InvalidRequest with all problems of all fields, by public field name.
    """
    errors: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for field in operation.fields:
        value = body.get(field.name)
        if value is None:
            if field.required:
                errors[field.name] = ["is required"]
            continue
        try:
            values[field.name] = _CHECKS[field.type](field, value)
        except _Bad as bad:
            errors[field.name] = list(bad.args)
    known = {field.name for field in operation.fields}
    for name in body:
        if name not in known:
            errors[name] = ["is not a known field"]
    if errors:
        names = ", ".join(errors)
        raise InvalidRequest(f"The request is invalid: {names}.", errors=errors)
    return values


def apply_defaults(
    operation: Operation, values: Mapping[str, Any], rules: Mapping[str, FieldRule]
) -> dict[str, Any]:
    """`values`, with the model's or else the operation's defaults for absent fields."""
    complete = dict(values)
    for field in operation.fields:
        if field.name in complete:
            continue
        rule = rules.get(field.name)
        if rule is not None and not rule.supported:
            continue
        default = field.default
        if rule is not None and rule.default is not None:
            default = _CHECKS[field.type](field, orjson.loads(rule.default))
        if default is not None:
            complete[field.name] = default
    return complete


def check_model(
    model_id: str,
    given: Mapping[str, Any],
    complete: Mapping[str, Any],
    rules: Mapping[str, FieldRule],
) -> None:
    """Check that the model supports the values: `given` by the client, `complete` with defaults.

    Conflict, naming the first field that the model does not support.
    """
    for name, rule in rules.items():
        if not rule.supported and name in given:
            raise _unsupported(model_id, name, f"does not support {name}")
        value = complete.get(name)
        if value is None or not rule.supported:
            continue
        problem = _narrow(rule, value)
        if problem:
            raise _unsupported(model_id, name, f"does not support this {name}: it {problem}")


def check_rule(operation: Operation, rule: FieldRule) -> str | None:
    """Return the problem of a model's rule itself, for the model's `Ready` condition."""
    field = operation.field(rule.name)
    if field is None or not field.goes_upstream:
        return f"{rule.name} is not a field of {operation.action} that a model may narrow"
    if field.required and not rule.supported:
        return f"{rule.name} is required and cannot be unsupported"
    unknown = [value for value in rule.allowed or () if value not in field.values]
    if rule.allowed is not None and (field.type != "choice" or unknown):
        return f"{rule.name} cannot be narrowed to {', '.join(unknown or rule.allowed)}"
    if rule.default is not None:
        try:
            value = _CHECKS[field.type](field, orjson.loads(rule.default))
        except orjson.JSONDecodeError:
            return f"the default of {rule.name} must be JSON, e.g. '\"1080p\"' or '5'"
        except _Bad as bad:
            return f"the default of {rule.name} {bad.args[0]}"
    else:
        value = field.default
    if value is not None and rule.supported:
        problem = _narrow(rule, value)
        if problem:
            return f"the default of {rule.name} {problem}"
    return None


def fingerprint(complete: Mapping[str, Any]) -> str:
    """Hex SHA-256 of the canonical JSON of the whole validated body (contract §2.2)."""
    return hashlib.sha256(to_canonical_json(complete)).hexdigest()


def to_canonical_json(value: Any) -> bytes:
    """UTF-8 JSON with sorted keys and no spaces."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _unsupported(model_id: str, name: str, problem: str) -> Conflict:
    return Conflict(f"Model {model_id} {problem}.", code="unsupported_by_model", param=name)


def _narrow(rule: FieldRule, value: Any) -> str | None:
    if rule.allowed is not None and value not in rule.allowed:
        return f"must be one of {', '.join(rule.allowed)}"
    if isinstance(value, int) and not isinstance(value, bool):
        if rule.minimum is not None and value < rule.minimum:
            return f"must be at least {rule.minimum}"
        if rule.maximum is not None and value > rule.maximum:
            return f"must be at most {rule.maximum}"
    if isinstance(value, list) and rule.max_items is not None and len(value) > rule.max_items:
        return f"must have at most {rule.max_items} items"
    if isinstance(value, str) and rule.max_length is not None and len(value) > rule.max_length:
        return f"must have at most {rule.max_length} characters"
    return None


def _check_text(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise _Bad("must be a string")
    if not value.strip():
        raise _Bad("must not be blank")
    if not field.minimum <= len(value) <= field.maximum:
        raise _Bad(f"must have {field.minimum} to {field.maximum} characters")
    return value


def _check_choice(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise _Bad("must be a string")
    if value not in field.values:
        raise _Bad(f"must be one of {', '.join(field.values)}")
    return value


def _check_boolean(_: Field, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("must be true or false")
    return value


def _check_integer(field: Field, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Bad("must be an integer")
    if not field.minimum <= value <= field.maximum:
        raise _Bad(f"must be {field.minimum} to {field.maximum}")
    return value


def _check_urls(field: Field, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise _Bad("must be an array of URLs")
    problems = []
    if not field.minimum <= len(value) <= field.maximum:
        bounds = (
            f"{field.minimum} to {field.maximum}" if field.minimum else f"up to {field.maximum}"
        )
        problems.append(f"must have {bounds} items")
    # bounded: a client may send thousands of items
    for index, item in enumerate(value[: field.maximum]):
        try:
            _check_url(field, item)
        except _Bad as bad:
            problems.append(f"[{index}] {bad.args[0]}")
    if problems:
        raise _Bad(*problems)
    return value


def _check_url(_: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise _Bad("must be a string")
    if len(value) > MAX_URL:
        raise _Bad(f"must have at most {MAX_URL} characters")
    if _NOT_IN_URL.search(value):
        raise _Bad("must be a URL without spaces or control characters")
    try:
        parts = urlsplit(value)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        raise _Bad("must be a valid URL") from None
    if "[" in parts.netloc and not _BRACKETED.fullmatch(parts.netloc.rpartition("@")[2]):
        raise _Bad("must be a valid URL")
    if parts.scheme not in ("http", "https") or not host:
        raise _Bad("must be an absolute http or https URL")
    if "@" in parts.netloc:
        raise _Bad("must not contain a user name or password")
    return value


_CHECKS: dict[str, Callable[[Field, Any], Any]] = {
    "text": _check_text,
    "choice": _check_choice,
    "boolean": _check_boolean,
    "integer": _check_integer,
    "url": _check_url,
    "urls": _check_urls,
}
