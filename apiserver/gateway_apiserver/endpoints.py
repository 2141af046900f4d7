"""Operations that are ASGI endpoints: hot paths, streams of bytes, and pages.

They stand in the same application as the functions of `routers`, and are described in the same
document (`documents`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway_apiserver.access import authorize
from gateway_apiserver.surfaces.validation import declares_body
from gateway_core.accounts.authentication import Principal
from gateway_core.admission.admission import Access
from gateway_core.providers.catalog import Catalog
from gateway_web.application import EndpointRoute
from gateway_web.context import Header, RequestContext, get_context
from gateway_web.errors import to_gateway_error
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange
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
        self.exchange: Exchange = scope.get(EXCHANGE_KEY, _NO_CLIENT)
        self.receive = receive
        self.send = send
        self.context = context
        self._caller = caller
        self._length: int | None = None

    @property
    def caller(self) -> Principal:
        """The caller."""
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
    def declared_length(self) -> int:
        """Content-Length of the body, 0 where it is not declared."""
        if self._length is None:
            declared = (value for name, value in self.headers if name == b"content-length")
            self._length = next((int(value) for value in declared if value.isdigit()), 0)
        return self._length

    @property
    def has_body(self) -> bool:
        """True if a body is declared."""
        return declares_body(self.headers)


Handler = Callable[[Call], Awaitable[Response | None]]
"""Returns the response, or None where it has sent one itself."""


class OutcomeCounter(Protocol):
    """Counts paid calls."""

    def count_admission(self, surface: str, outcome: str) -> None:
        """Count one paid call by its surface and outcome."""
        ...


async def count_outcome(handler: Handler, call: Call, counter: OutcomeCounter) -> Response | None:
    """Run the handler of a paid call and count it once: by its error, else by its context."""
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


Schema = dict[str, Any]
Body = type[BaseModel] | Schema | Callable[[Catalog], Schema | None]


@dataclass(frozen=True, slots=True)
class HeaderDocs:
    """Description of a header that successful responses may have."""

    description: str
    schema: Schema


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
    form: Schema | None = None
    makes: str = ""
    also: tuple[int, ...] = ()
    errors: tuple[str, ...] = ()
    event: Schema | None = None
    example: Any = None
    parameters: Sequence[Schema] = ()
    headers: Mapping[str, HeaderDocs] = field(default_factory=dict)
    responses: Mapping[str, Any] = field(default_factory=dict)


class CallRoute(EndpointRoute):
    """One operation that is an ASGI endpoint: a hot path, or a stream of bytes.

    `label` names it in metrics, its surface first: `files_list`. The caller is checked before
    `handler` runs (`access`); a `paid` operation passes `admission` instead, and is counted by its
    outcome.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        label: str,
        access: Access | None = None,
        docs: Docs | None = None,
        *,
        paid: bool = False,
    ) -> None:
        super().__init__(method, path, self._serve_call, name=label)
        self.method, self.handler, self.label = method, handler, label
        self.access, self.docs, self.paid = access, docs, paid

    def describe(self, catalog: Catalog) -> Iterable[tuple[str, Docs]]:
        """Paths and descriptions for `/openapi.json`."""
        if self.docs is not None:
            yield self.path_format, self.docs

    async def _serve_call(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = get_context(scope)
        context.route, context.template = self.label, self.path_format
        caller = await authorize(scope, self.access)
        call = Call(scope, receive, send, context, caller)
        if self.paid:
            response = await count_outcome(self.handler, call, scope["app"].state.metrics)
        else:
            response = await self.handler(call)
        if response is not None:
            await send_response(send, response)


class Unlisted(Route):
    """A create of what is not listed: to a GET its path is unknown, as one object of it is."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the path is this one, and the method no GET."""
        return (Match.NONE, {}) if scope["method"] == "GET" else super().matches(scope)


class UnlistedRoute(Unlisted, CallRoute):
    """Such an operation that is an ASGI endpoint."""
