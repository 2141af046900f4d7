"""Request bodies, Idempotency-Keys and fields in the OpenAI form (contract §0.2, §1.2, §2.1)."""

from collections.abc import Collection, Iterable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway_apiserver.context import Header
from gateway_apiserver.routing import Call
from gateway_core.api.errors import InvalidRequest, TooLarge, UnsupportedMediaType
from gateway_core.tasks.validation import parse_body

JSON_TYPE = "application/json"
MOST_BODY_BYTES = 1024 * 1024
ANCHOR = "created_at"
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
