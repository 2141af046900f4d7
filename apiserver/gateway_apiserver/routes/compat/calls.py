"""One call of a surface below `/v1`: what a handler is given, and how it answers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway_apiserver.admission.freerates import FreeRates
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.answers import JSON, NO_STORE, Answer, send_answer
from gateway_apiserver.auth import Authenticator, Principal
from gateway_apiserver.trace import Header, Trace
from gateway_core.domain.roles import Act
from gateway_core.ports.counters import FreeRate


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose path and method are known; neither its caller nor its body are yet.

    `ids` are the variable parts of the path, in order.
    """

    scope: Scope
    receive: Receive
    send: Send
    trace: Trace
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


class Door:
    """Who may go on, for calls that are not paid for; those pass `admission.entrance`."""

    def __init__(self, authenticator: Authenticator, rates: FreeRates, intake: Intake) -> None:
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
