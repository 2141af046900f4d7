"""Credentials of LLM calls, which Google's clients send in a header or a parameter of their own."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from gateway_web.context import Header


def read_credentials(scope: Mapping[str, Any]) -> Sequence[Header]:
    """Return the request's headers, with the key of `x-goog-api-key` or `?key=` as `Authorization`.

    Keys that are not all the same stay several, which authentication refuses (contract §0.10), in
    its turn: after maintenance (§0.9).
    """
    headers: Sequence[Header] = scope["headers"]
    query: bytes = scope["query_string"]
    keys = {value for name, value in headers if name == b"x-goog-api-key"}
    if query:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        keys |= {value.encode("latin-1", "replace") for name, value in pairs if name == "key"}
    if not keys:
        return headers
    given = {value for name, value in headers if name == b"authorization"}
    bearers = {b"Bearer " + key for key in keys}
    plain = {b"Bearer" + value[6:] if value[:6].lower() == b"bearer" else value for value in given}
    if given and bearers == plain:
        return headers
    return [*headers, *((b"authorization", bearer) for bearer in bearers)]
