"""One table of routes: paths, methods, what each requires of its caller, and their dispatch.

Checks run in the order of contract §0.9: route and method, maintenance, credential, class and role,
free rate; only then the handler reads a body. A paid call's operation has no `access`, as
`admission` authenticates it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway_core.accounts.authentication import Principal
from gateway_core.admission.admission import Access, Authorizer
from gateway_core.api.errors import MethodNotAllowed, NotFound
from gateway_core.providers.catalog import Catalog
from gateway_web.context import Header, RequestContext, get_context
from gateway_web.errors import to_gateway_error
from gateway_web.middleware.exchange import EXCHANGE_KEY, ClientExchange
from gateway_web.middleware.metrics import find_surface
from gateway_web.responses import Response, send_response

_NO_CLIENT: Any = None


class Call:
    """One request whose route is known. `caller` is None where its operation has no `access`.

    `headers` are as they arrived. `exchange` is the client's side of the request, for relays.
    """

    __slots__ = (
        "_caller",
        "_length",
        "context",
        "exchange",
        "headers",
        "receive",
        "scope",
        "send",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        context: RequestContext,
        caller: Principal | None = None,
    ) -> None:
        self.scope = scope
        self.headers: Sequence[Header] = scope["headers"]
        # a test's client has none
        self.exchange: ClientExchange = scope.get(EXCHANGE_KEY, _NO_CLIENT)
        self.receive = receive
        self.send = send
        self.context = context
        self._caller = caller
        self._length: int | None = None

    @property
    def caller(self) -> Principal:
        """Who calls."""
        assert self._caller is not None, "the operation requires no credential"
        return self._caller

    @property
    def account(self) -> str:
        """Name of the caller's account."""
        return self.caller.account.name

    @property
    def query(self) -> bytes:
        """Query string as it arrived."""
        text: bytes = self.scope["query_string"]
        return text

    @property
    def wire_id(self) -> str:
        """The one id in the path."""
        params: dict[str, str] = self.scope["path_params"]
        (wire_id,) = params.values()
        return wire_id

    @property
    def is_head(self) -> bool:
        """Whether the response has no body."""
        return bool(self.scope["method"] == "HEAD")

    @property
    def declared_length(self) -> int:
        """Content-Length of the body, 0 where it is not declared."""
        if self._length is None:
            declared = (value for name, value in self.headers if name == b"content-length")
            self._length = next((int(value) for value in declared if value.isdigit()), 0)
        return self._length

    @property
    def has_body(self) -> bool:
        """Whether a body is declared."""
        given = dict(self.headers)
        return given.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in given


Handler = Callable[[Call], Awaitable[Response | None]]
"""Returns the response, or None where it has sent one itself."""


class OutcomeCounter(Protocol):
    """Counts paid calls."""

    def count_admission(self, surface: str, outcome: str) -> None:
        """Count one paid call by its surface and outcome."""
        ...


def count_outcomes(handler: Handler, counter: OutcomeCounter) -> Handler:
    """The handler, each of whose calls is counted once: by its error, else by its context."""

    async def serve(call: Call) -> Response | None:
        context, outcome = call.context, "cut_short"
        try:
            response = await handler(call)
            outcome = context.outcome
        except ClientDisconnect:
            outcome = "client_gone"
            raise
        except Exception as error:
            outcome = to_gateway_error(error, context.request_id).code
            raise
        else:
            return response
        finally:
            counter.count_admission(find_surface(context.route), outcome)

    return serve


Schema = dict[str, Any]
Body = type[BaseModel] | Schema | Callable[[Catalog], Schema | None]


@dataclass(frozen=True, slots=True)
class HeaderDocs:
    """Description of a header of successful responses; `always`: each of them has it."""

    description: str
    schema: Schema
    always: bool = False


@dataclass(frozen=True, slots=True)
class Docs:
    """Description of an operation in `/openapi.json`, beside what its path and access imply.

    `body` and `query` are the models that validate the call. A body that depends on the catalog is
    a function, which returns None if the operation cannot be called. `makes` names what a call
    with an Idempotency-Key makes once. `also` are errors that nothing else implies, `errors` the
    components that describe them where the path does not imply that. `event` describes each event
    of a stream, for an operation that may answer with one (`openapi`). `parameters` are parameter
    objects of request headers, `headers` those of successful responses by name.
    """

    name: str
    summary: str
    response: type[BaseModel] | Schema | None = None
    _: KW_ONLY
    status: int = 200
    query: type[BaseModel] | None = None
    body: Body | None = None
    has_optional_body: bool = False
    form: Schema | None = None
    makes: str = ""
    also: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()
    event: Schema | None = None
    example: Any = None
    parameters: Sequence[Schema] = ()
    headers: Mapping[str, HeaderDocs] = field(default_factory=dict)
    responses: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a path. `label` names it in metrics, its surface first: `files_list`.

    A `paid` one passes `admission`, and is counted by its outcome.
    """

    handler: Handler
    label: str
    access: Access | None = None
    paid: bool = False
    docs: Docs | None = None


class PathRoute(BaseRoute):
    """All operations of one path; a GET serves HEAD too, unless `has_head` is false."""

    def __init__(self, path: str, authorizer: Authorizer, *, has_head: bool = True) -> None:
        self.path = path
        self.operations: dict[str, Operation] = {}
        self._authorizer = authorizer
        self._has_head = has_head
        self._pattern = compile_path(path)[0]

    @property
    def methods(self) -> list[str]:
        """What the path allows, sorted."""
        return sorted({*self.operations, *(("HEAD",) if self.find("HEAD") else ())})

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the path is this one; a method that it lacks is refused by `handle`."""
        # not `match`: its `$` would let a newline stand at the end
        found = self._pattern.fullmatch(scope["path"])
        return (
            (Match.NONE, {}) if found is None else (Match.FULL, {"path_params": found.groupdict()})
        )

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the caller, run the operation and send its response."""
        operation = self.find(scope["method"])
        if operation is None:
            self.refuse(scope["method"])
            raise MethodNotAllowed(", ".join(self.methods))
        context = get_context(scope)
        context.route, context.template = operation.label, self.path
        caller = None
        if operation.access is not None:
            caller = await self._authorizer.authorize(scope["headers"], context, operation.access)
        call = Call(scope, receive, send, context, caller)
        response = await operation.handler(call)
        if response is not None:
            await send_response(send, response, with_body=scope["method"] != "HEAD")

    def describe(self, catalog: Catalog) -> Iterable[tuple[str, str, Operation]]:
        """Paths, methods and operations for `/openapi.json`."""
        for method, operation in self.operations.items():
            yield self.path, method, operation

    def refuse(self, method: str) -> None:
        """Raise what a method that the path lacks is answered with, if that is not 405."""

    def find(self, method: str) -> Operation | None:
        """The operation of a method."""
        if method == "HEAD" and self._has_head:
            method = "GET"
        return self.operations.get(method)


class RouteTable:
    """The routes of all surfaces, in the order in which paths are compared."""

    def __init__(self, authorizer: Authorizer, counter: OutcomeCounter) -> None:
        self.authorizer = authorizer
        self._counter = counter
        self.routes: list[PathRoute] = []
        self._by_path: dict[str, PathRoute] = {}

    def add(
        self,
        method: str,
        path: str,
        handler: Handler,
        label: str,
        access: Access | None = None,
        docs: Docs | None = None,
        *,
        paid: bool = False,
        has_head: bool = True,
    ) -> None:
        """Add an operation; the path's first one decides `has_head`."""
        route = self._by_path.get(path)
        if route is None:
            route = self.add_path(PathRoute(path, self.authorizer, has_head=has_head))
        served = count_outcomes(handler, self._counter) if paid else handler
        route.operations[method] = Operation(served, label, access, paid, docs)

    def add_path(self, route: PathRoute) -> PathRoute:
        """Add a route that matches or refuses in a way of its own."""
        self._by_path[route.path] = route
        self.routes.append(route)
        return route

    def build_app(self) -> ASGIApp:
        """The router without middleware of its own: errors rise to `RequestMiddleware`."""
        fixed = {route.path: route for route in self.routes if "{" not in route.path}
        patterns = [route for route in self.routes if "{" in route.path]

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            # paths without parameters are looked up: only the others are compared in turn
            route = fixed.get(scope["path"])
            params: Scope = {}
            if route is None:
                route, params = _find(patterns, scope)
            scope["path_params"] = {}
            scope.update(params)
            await route.handle(scope, receive, send)

        return serve

    def __str__(self) -> str:
        rows: list[tuple[Any, ...]] = [
            (method, route.path, operation.label)
            for route in self.routes
            for method, operation in route.operations.items()
        ]
        return "\n".join(f"{method:7} {path:60} {label}" for method, path, label in rows)


def _find(routes: Iterable[PathRoute], scope: Scope) -> tuple[PathRoute, Scope]:
    """The first route that matches, and what it adds to the scope. NotFound."""
    for route in routes:
        match, found = route.matches(scope)
        if match is not Match.NONE:
            return route, found
    raise NotFound("Not found.")
