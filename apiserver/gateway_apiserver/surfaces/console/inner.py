"""Operations of the API, called for a signed-in user as if by a key (contract §9.2).

Pages show and change what the REST operations do, by the same handlers: the same validation, roles,
limits and errors. There is no second implementation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.parts import locate
from gateway_apiserver.surfaces.console.seats import Seat
from gateway_apiserver.surfaces.validation import refuse_fields
from gateway_core.api.errors import InvalidRequest
from gateway_web.context import SCOPE_KEY, Header, RequestContext, get_context

_JSON_TYPE: Header = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value of a form that has no form in JSON, in the place of it: `problem` says why."""

    problem: str


def find_wrong(body: Any) -> dict[str, list[str]]:
    """Return the problems of the wrong values of a body by their names."""
    found = body.items() if isinstance(body, dict) else ()
    return {name: [value.problem] for name, value in found if isinstance(value, Wrong)}


class InnerApi:
    """Runs operations as the application does, for a page instead of a connection."""

    def __init__(self, router: ASGIApp) -> None:
        self._router = router

    async def read(self, call: Call, seat: Seat, path: str, **query: Any) -> Any:
        """Return the body that a GET is answered with. GatewayError as the operation's."""
        return await self._exchange(call, seat, "GET", path, query, None, ())

    async def write(
        self,
        call: Call,
        seat: Seat,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str = "",
        **query: str,
    ) -> Any:
        """Return the body of an answer to a call with this Idempotency-Key. GatewayError as there.

        Of a body with wrong values the problems of all fields are raised together.
        """
        headers = ((b"idempotency-key", key.encode()),) if key else ()
        wrong = find_wrong(body)
        if wrong:
            # no field takes an object without its names: the operation is refused
            body = {**body, **{name: {"": None} for name in wrong}}
        try:
            return await self._exchange(call, seat, method, path, query, body, headers)
        except InvalidRequest as error:
            if not wrong:
                raise
            raise refuse_fields({**(error.errors or {}), **wrong}) from error

    async def send(self, call: Call, seat: Seat, path: str) -> None:
        """Have the operation of a GET answer the call itself."""
        inner = self._enter(call, seat, "GET", path, b"", [*call.headers])
        await self._run(inner, call.receive, call.send)

    async def forward(self, call: Call, seat: Seat, path: str) -> Any:
        """Return the body that a POST is answered with, whose body is the call's own."""
        inner = self._enter(call, seat, "POST", path, b"", [*call.headers])
        return await self._read(inner, call.receive)

    async def stream(self, call: Call, seat: Seat, path: str, body: Any) -> None:
        """Have the operation of a POST answer the call itself, by a stream."""
        raw = orjson.dumps(body)
        headers = [_JSON_TYPE, (b"content-length", b"%d" % len(raw))]
        inner = self._enter(call, seat, "POST", path, b"", headers)
        await self._run(inner, _make_receive(raw, call), call.send)

    async def _exchange(
        self,
        call: Call,
        seat: Seat,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Any,
        headers: tuple[Header, ...],
    ) -> Any:
        text = locate("", **query).removeprefix("?").encode()
        raw = b"" if body is None else orjson.dumps(body)
        if body is not None:
            headers = (*headers, _JSON_TYPE, (b"content-length", b"%d" % len(raw)))
        inner = self._enter(call, seat, method, path, text, [*headers])
        return await self._read(inner, _make_receive(raw, call))

    async def _read(self, inner: Scope, receive: Receive) -> Any:
        parts = list[bytes]()

        async def collect(message: Message) -> None:
            parts.append(message.get("body", b""))

        await self._run(inner, receive, collect)
        return orjson.loads(b"".join(parts))

    def _enter(
        self,
        call: Call,
        seat: Seat,
        method: str,
        path: str,
        query: bytes,
        headers: list[Header],
    ) -> Scope:
        context = RequestContext(call.context.request_id, call.context.span)
        context.account, context.caller, context.is_inner = (
            seat.account.name,
            seat.principal,
            True,
        )
        return {
            **call.scope,
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers,
            "path_params": {},
            SCOPE_KEY: context,
        }

    async def _run(self, inner: Scope, receive: Receive, send: Send) -> None:
        get_context(inner).sender = send
        await self._router(inner, receive, send)


def _make_receive(body: bytes, call: Call) -> Receive:
    """Return the body, and then what becomes of the client."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            return await call.receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
