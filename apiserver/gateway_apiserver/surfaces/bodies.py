"""Request bodies, Idempotency-Keys and fields in the OpenAI form (contract §0.2, §1.2, §2.1)."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway_apiserver.context import Header
from gateway_apiserver.routing import Call
from gateway_core.api.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from gateway_core.files.files import LONGEST_SECONDS, SHORTEST_SECONDS
from gateway_core.tasks.validation import parse_body

JSON_TYPE = "application/json"
MOST_KEY_CHARACTERS = 512


async def read_json_body(headers: Iterable[Header], receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a JSON request.

    Raises:
        UnsupportedMediaType: it is declared as something else, or as nothing.
        TooLarge: it is longer than `max_bytes`, as declared or as sent.
        ClientDisconnect: it never came to its end.
    """
    content_type = declared = b""
    for name, value in headers:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            declared = value
    if content_type.partition(b";")[0].strip().lower() != JSON_TYPE.encode():
        raise UnsupportedMediaType(JSON_TYPE)
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return bytes(body)


def read_idempotency_key(headers: Iterable[Header]) -> str | None:
    """The trimmed key, None where there is none. InvalidRequest if it is empty, long or double."""
    given = [value for name, value in headers if name == b"idempotency-key"]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest("Idempotency-Key was sent more than once.")
    try:
        key = given[0].decode().strip()
    except UnicodeDecodeError:
        key = given[0].decode("latin-1").strip()
    if not 1 <= len(key) <= MOST_KEY_CHARACTERS:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MOST_KEY_CHARACTERS} characters.")
    return key


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The body must have at most {max_bytes} bytes.")


MOST_BODY_BYTES = 1024 * 1024
ANCHOR = "created_at"


async def read_object(call: Call, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object that the call brings, of at most 1 MiB; `optional`: {} where it is empty.

    Raises:
        UnsupportedMediaType, TooLarge, ClientDisconnect: as `read_json_body`.
        InvalidRequest: `invalid_json`, or `invalid_type` where it is no object.
    """
    if optional and not call.has_body:
        return {}
    raw = await read_json_body(call.headers, call.receive, MOST_BODY_BYTES)
    return {} if optional and not raw.strip() else parse_body(raw)


def take_text(body: Mapping[str, Any], name: str, *, most: int | None = None) -> str:
    """A string that has to be there and not empty, of at most `most` characters."""
    value = take_optional_text(body, name, most=most)
    if value is None:
        raise missing(name)
    return value


def take_optional_text(
    body: Mapping[str, Any], name: str, *, most: int | None = None
) -> str | None:
    """The same, or None."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type(name, "a string")
    if not value:
        raise invalid(name, "must not be empty")
    if most is not None and len(value) > most:
        raise invalid(name, f"must have at most {most} characters")
    return value


def take_word(body: Mapping[str, Any], name: str, words: Collection[str]) -> str:
    """A string that has to be one of `words`."""
    value = take_text(body, name)
    return check_word(value, name, words)


def take_whole(
    body: Mapping[str, Any], name: str, *, least: int = 0, most: int | None = None
) -> int:
    """A whole number that has to be there; 5.0 is one, "5" and true are none."""
    value = body.get(name)
    if value is None:
        raise missing(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer")
    if value < least:
        raise invalid(name, f"must be at least {least}")
    if most is not None and value > most:
        raise invalid(name, f"must be at most {most}")
    return value


def take_life(body: Mapping[str, Any], name: str = "expires_after") -> int | None:
    """Seconds of an `expires_after` object, anchored at the creation; None if absent (§3.1)."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type(name, "an object")
    try:
        take_word(value, "anchor", (ANCHOR,))
        return take_whole(value, "seconds", least=SHORTEST_SECONDS, most=LONGEST_SECONDS)
    except InvalidRequest as error:
        inner = f"{name}.{error.param}"
        raise InvalidRequest(
            error.message.replace(f"'{error.param}'", f"'{inner}'"), code=error.code, param=inner
        ) from None


def check_word(value: str, name: str, words: Collection[str]) -> str:
    """`value`, if it is one of `words`. InvalidRequest."""
    if value not in words:
        raise invalid(name, f"must be {' or '.join(repr(word) for word in words)}")
    return value


def missing(name: str) -> InvalidRequest:
    """A parameter that has to be there is not."""
    return InvalidRequest(
        f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
    )


def invalid(name: str, problem: str, *, code: str = "invalid_value") -> InvalidRequest:
    """A value breaks a rule; `problem` is what it must be. The value itself is not repeated."""
    return InvalidRequest(f"Invalid value for '{name}': it {problem}.", code=code, param=name)


def wrong_type(name: str, expected: str) -> InvalidRequest:
    """A value is of another JSON type."""
    return InvalidRequest(
        f"Invalid type for '{name}': it must be {expected}.", code="invalid_type", param=name
    )
