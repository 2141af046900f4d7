"""What a call brings with it: its JSON body and its Idempotency-Key (contract §2.1)."""

from collections.abc import Iterable

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from gateway_apiserver.trace import Header
from gateway_core.contract.errors import InvalidRequest, TooLarge, UnsupportedMediaType

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
