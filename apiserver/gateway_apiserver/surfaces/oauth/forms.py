"""Bodies of the authorization server: forms and JSON, small and read whole."""

import json
from typing import Any
from urllib.parse import parse_qsl

import orjson

from gateway_apiserver.endpoints import Call
from gateway_core.api.errors import OAuthError, TooLarge
from gateway_core.oauth.authorization import Pairs, check_repetitions
from gateway_web.middleware.bodies import read_chunks

FORM_BYTES = 32 * 1024
MOST_FIELDS = 64
_FORM = b"application/x-www-form-urlencoded"
_JSON = b"application/json"


async def read_pairs(call: Call) -> list[tuple[str, str]]:
    """Return the fields of a form, in order. OAuthError `invalid_request`, TooLarge."""
    if _media_type(call) != _FORM:
        raise OAuthError("invalid_request", f"The body must be {_FORM.decode()}.")
    return parse_pairs(await _read(call, FORM_BYTES))


async def read_form(call: Call) -> dict[str, str]:
    """Return the fields of a form, which may not repeat.

    Empty ones are left out (RFC 6749 §3.2).
    """
    return to_fields(await read_pairs(call))


def to_fields(pairs: Pairs) -> dict[str, str]:
    """Return the fields that are not empty. OAuthError `invalid_request` where one is repeated."""
    given = [(name, value) for name, value in pairs if value]
    check_repetitions(given)
    return dict(given)


async def read_json(call: Call, most_bytes: int) -> Any:
    """Return a JSON body. OAuthError `invalid_client_metadata`, TooLarge."""
    if _media_type(call) != _JSON:
        raise OAuthError("invalid_client_metadata", f"The body must be {_JSON.decode()}.")
    raw = await _read(call, most_bytes)
    try:
        body = orjson.loads(raw)
        # orjson keeps the last of several members with one name
        json.loads(raw, object_pairs_hook=_check_members)
    except (ValueError, RecursionError):
        raise OAuthError("invalid_client_metadata", "The body is not valid JSON.") from None
    return body


def parse_pairs(text: bytes) -> list[tuple[str, str]]:
    """Return the parameters of a query or form, in order. OAuthError `invalid_request`."""
    try:
        return parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise OAuthError("invalid_request", "The parameters are malformed.") from None


def find_header(call: Call, name: bytes) -> str | None:
    """Return a header's value, None without one. OAuthError where there are several."""
    found = [value for key, value in call.headers if key == name]
    if len(found) > 1:
        raise OAuthError("invalid_request", f"The header {name.decode()} is repeated.")
    return found[0].decode("latin-1") if found else None


def _check_members(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        raise OAuthError("invalid_client_metadata", "A member is repeated.")


def _media_type(call: Call) -> bytes:
    given = dict(call.headers).get(b"content-type", b"")
    return given.partition(b";")[0].strip().lower()


async def _read(call: Call, most_bytes: int) -> bytes:
    error = TooLarge(f"The body may have {most_bytes} bytes.")
    return b"".join([chunk async for chunk in read_chunks(call.receive, most_bytes, error)])
