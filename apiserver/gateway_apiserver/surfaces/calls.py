"""One call of a surface below `/v1`: what a handler is given, and how it answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway_apiserver.admission.authentication import Authenticator, Principal
from gateway_apiserver.admission.free_rates import FreeRateLimiter
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.context import Header, RequestContext, get_context
from gateway_apiserver.responses import JSON, NO_STORE, Answer, send_answer
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import MethodNotAllowed, NotFound
from gateway_core.billing.counters import FreeRate


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose path and method are known; neither its caller nor its body are yet.

    `ids` are the variable parts of the path, in order.
    """

    scope: Scope
    receive: Receive
    send: Send
    trace: RequestContext
    ids: tuple[str, ...]

    @property
    def headers(self) -> Sequence[Header]:
        """As they came."""
        found: Sequence[Header] = self.scope["headers"]
        return found

    @property
    def query(self) -> bytes:
        """The query string, as it came."""
        text: bytes = self.scope["query_string"]
        return text

    @property
    def is_head(self) -> bool:
        """Whether the answer is wanted without its body."""
        return bool(self.scope["method"] == "HEAD")

    async def reply(self, body: Any, *extra: Header) -> None:
        """Answers 200 with `body` as JSON."""
        answer = Answer(200, orjson.dumps(body), (JSON, NO_STORE, *extra))
        await send_answer(self.send, answer, with_body=not self.is_head)


Handler = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What serves a path and method; `route` is the word that metrics have for it."""

    route: str
    serve: Handler


class Authorizer:
    """Who may go on, for calls that are not paid for; those pass `admission.entrance`."""

    def __init__(
        self, authenticator: Authenticator, rates: FreeRateLimiter, intake: Intake
    ) -> None:
        self._authenticator = authenticator
        self._rates = rates
        self._intake = intake

    async def admit(
        self, call: Call, act: Act, *, creates: bool = False, rate: FreeRate | None = None
    ) -> Principal:
        """The caller, in the order of contract §0.9: maintenance, credential, class, role, rate.

        The call counts in `rate`, if one is named (§12.1a).

        Raises Unavailable, Unauthenticated, Forbidden, TooManyCalls.
        """
        if creates:
            self._intake.check()
        caller = await self._authenticator.authenticate(call.headers, act)
        call.trace.account = caller.account.name
        if rate is not None:
            await self._rates.count(caller.account.name, rate)
        return caller


ROOT = "/v1"
_UNREAD = f"{ROOT}/uploads"
"""To ask for these finds nothing, as it does for one of them (contract §4.6)."""

Endpoints = Mapping[str, Mapping[str, Endpoint]]
"""Path below `/v1`, such as `files/{file_id}/content`, to method to endpoint; GET serves HEAD."""


class CompatRoutes:
    """The surfaces' endpoints; their paths' first words are theirs alone, others are not taken."""

    def __init__(self, *surfaces: Endpoints) -> None:
        self._endpoints: dict[tuple[str, ...], tuple[str, Mapping[str, Endpoint]]] = {}
        for surface in surfaces:
            for path, methods in surface.items():
                shape = tuple("" if part.startswith("{") else part for part in path.split("/"))
                self._endpoints[shape] = (f"{ROOT}/{path}", methods)
        self._words = {shape[0] for shape in self._endpoints}

    def takes(self, path: str) -> bool:
        """Whether this path is answered here, be it by a 404."""
        parts = path.split("/", 3)
        return len(parts) > 2 and parts[1] == "v1" and parts[2] in self._words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        parts = scope["path"].split("/")[2:]
        template, methods, ids = self._find(parts)
        is_head = scope["method"] == "HEAD"
        endpoint = methods.get("GET" if is_head else scope["method"])
        if endpoint is None:
            if template == _UNREAD and (is_head or scope["method"] == "GET"):
                raise NotFound("Not found.")
            allowed = {*methods, "HEAD"} if "GET" in methods else set(methods)
            raise MethodNotAllowed(", ".join(sorted(allowed)))
        trace = get_context(scope)
        trace.route, trace.template = endpoint.route, template
        await endpoint.serve(Call(scope, receive, send, trace, ids))

    def _find(self, parts: list[str]) -> tuple[str, Mapping[str, Endpoint], tuple[str, ...]]:
        """The template, its methods, and the ids in the path. NotFound."""
        for shape, (template, methods) in self._endpoints.items():
            if len(shape) == len(parts) and all(
                part if not word else part == word for word, part in zip(shape, parts, strict=True)
            ):
                ids = tuple(part for word, part in zip(shape, parts, strict=True) if not word)
                return template, methods, ids
        raise NotFound("Not found.")
