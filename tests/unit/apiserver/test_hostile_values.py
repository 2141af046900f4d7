"""Values that no field expects: each operation that is a function refuses them without a defect."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import orjson
from fastapi.routing import iter_route_contexts

from gateway_apiserver.document_schemas import list_properties
from gateway_apiserver.routes import GatewayRoute
from gateway_core.accounts.roles import Act
from tests.unit.apiserver.gateway import Gateway, call

TEXTS = (
    "",
    " ",
    "\x00",
    "\N{SUPERSCRIPT TWO}",
    "\N{GRINNING FACE}",
    "a" * 5000,
    "9" * 5000,
    "-1",
    "1e400",
    "../..",
    "x?y#z",
    "key_x",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-02-30T00:00:00Z",
)
VALUES: tuple[Any, ...] = (
    *TEXTS,
    None,
    True,
    -1,
    2**63 - 1,
    2**64 - 1,
    1e308,
    5e-324,
    [],
    [[[]]],
    [None] * 1000,
    ["a"] * 1000,
    {},
    {"": {"": None}},
    {"anchor": 1, "seconds": 1e308},
    {f"name-{number}": number for number in range(1000)},
)


def list_calls(route: GatewayRoute) -> Iterator[tuple[bytes, str]]:
    """Bodies and queries that have one such value each."""
    if route.body_field is not None:
        yield from ((orjson.dumps(value), "") for value in VALUES)
        for name in list_properties(route.body_field):
            yield from ((orjson.dumps({name: value}), "") for value in VALUES)
    for field in route.dependant.query_params:
        for name in list_properties(field):
            yield from ((b"", urlencode({name: text})) for text in TEXTS)


async def test_no_value_of_a_field_is_a_defect() -> None:
    # as many calls as the free rates would not admit
    gateway = Gateway(management_calls_per_minute=100_000, file_creates_per_minute=100_000)
    keys = gateway.put_key("demo"), gateway.put_key("demo", "Management")
    asked = 0
    for context in iter_route_contexts(gateway.app.routes):
        route = context.original_route
        if not isinstance(route, GatewayRoute):
            continue
        access = getattr(route.endpoint, "access", None)
        is_of_keys = access is None or access.act in (Act.READ, Act.CREATE)
        path = re.sub(r"\{\w+\}", "key_x", str(context.path))
        for raw, query in list_calls(route):
            asked += 1
            headers = [
                ("Authorization", f"Bearer {keys[not is_of_keys]}"),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(raw))),
            ]
            (method,) = route.methods
            answer = await call(
                gateway.app, method, path, headers=headers, content=raw, query=query
            )
            assert answer.status < 500, (method, path, raw[:100], query[:100], answer.body)
            assert "error" in answer.json or answer.status < 400
    assert asked > 1000
