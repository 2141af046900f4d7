"""Operations of the API, called for a signed-in user as if by a key (contract §9.2).

Pages show and change what the REST operations do, by the same handlers: the same validation, roles,
limits and errors. There is no second implementation.
"""

from typing import Any

import orjson
from starlette.routing import Match
from starlette.types import Message, Receive, Scope

from gateway_apiserver.routing import Call, RouteTable
from gateway_apiserver.surfaces.console.parts import locate
from gateway_apiserver.surfaces.console.seats import Seat
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
from gateway_core.api.errors import NotFound
from gateway_web.context import SCOPE_KEY, Header, RequestContext
from gateway_web.responses import Response

_JSON_TYPE: Header = (b"content-type", b"application/json")
_PAID = Access(Act.CREATE)
"""Of operations that pass `admission`, which checks the rest."""


class InnerApi:
    """Finds operations in the table and runs their handlers."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table

    async def read(self, call: Call, seat: Seat, path: str, **query: Any) -> Any:
        """The body that a GET is answered with. GatewayError as the operation's."""
        text = locate("", **query).removeprefix("?").encode()
        return await self._exchange(call, seat, "GET", path, text, None, ())

    async def write(
        self, call: Call, seat: Seat, method: str, path: str, body: Any = None, *, key: str = ""
    ) -> Any:
        """The body of an answer; `key` is the Idempotency-Key. GatewayError as the operation's."""
        headers = ((b"idempotency-key", key.encode()),) if key else ()
        path, _, query = path.partition("?")
        return await self._exchange(call, seat, method, path, query.encode(), body, headers)

    async def send(self, call: Call, seat: Seat, path: str) -> Response | None:
        """Have the operation of a GET answer the call itself."""
        inner = self._enter(call, seat, "GET", path, b"", [*call.headers], call.receive)
        return await self._run(inner, seat, counts=False)

    async def forward(self, call: Call, seat: Seat, path: str) -> Any:
        """The body that a POST is answered with, whose body is the call's own."""
        inner = self._enter(call, seat, "POST", path, b"", [*call.headers], call.receive)
        return await self._read(inner, seat, counts=True)

    async def stream(self, call: Call, seat: Seat, path: str, body: Any) -> Response | None:
        """Have the operation of a POST answer the call itself, by a stream."""
        raw = orjson.dumps(body)
        headers = [_JSON_TYPE, (b"content-length", b"%d" % len(raw))]
        inner = self._enter(call, seat, "POST", path, b"", headers, _make_receive(raw, call))
        return await self._run(inner, seat, counts=True)

    async def _exchange(
        self,
        call: Call,
        seat: Seat,
        method: str,
        path: str,
        query: bytes,
        body: Any,
        headers: tuple[Header, ...],
    ) -> Any:
        raw = b"" if body is None else orjson.dumps(body)
        if body is not None:
            headers = (*headers, _JSON_TYPE, (b"content-length", b"%d" % len(raw)))
        receive = _make_receive(raw, call)
        inner = self._enter(call, seat, method, path, query, [*headers], receive)
        return await self._read(inner, seat, counts=method != "GET")

    async def _read(self, inner: Call, seat: Seat, *, counts: bool) -> Any:
        response = await self._run(inner, seat, counts=counts)
        assert response is not None, "only streams are sent by their handlers"
        return orjson.loads(response.body)

    def _enter(
        self,
        call: Call,
        seat: Seat,
        method: str,
        path: str,
        query: bytes,
        headers: list[Header],
        receive: Receive,
    ) -> Call:
        context = RequestContext(call.context.request_id, call.context.span)
        context.account, context.caller = seat.account.name, seat.principal
        scope: Scope = {
            **call.scope,
            "method": method,
            "path": path,
            "query_string": query,
            "headers": headers,
            "path_params": {},
            SCOPE_KEY: context,
        }
        return Call(scope, receive, call.send, context, seat.principal)

    async def _run(self, inner: Call, seat: Seat, *, counts: bool) -> Response | None:
        for route in self._table.routes:
            match, found = route.matches(inner.scope)
            if match is not Match.NONE:
                break
        else:
            raise NotFound("Not found.")
        inner.scope.update(found)
        operation = route.find(inner.scope["method"])
        assert operation is not None, "pages know what they call"
        context = inner.context
        context.route, context.template = operation.label, route.path
        access = operation.access or _PAID
        await self._table.authorizer.authorize_session(
            seat.principal, context, access, counts=counts
        )
        return await operation.handler(inner)


def _make_receive(body: bytes, call: Call) -> Receive:
    """The body, and then what becomes of the client."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            return await call.receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
