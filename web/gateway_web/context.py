"""State of one HTTP request: its call, metric labels, response headers, and the drain."""

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.types import Send

from gateway_core.admission.context import CallContext
from gateway_core.observability.tracing import NO_SPAN, Span

SCOPE_KEY = "gateway.trace"

Header = tuple[bytes, bytes]


class Drain:
    """The shutdown of the process; readiness and every response depend on it."""

    def __init__(self) -> None:
        self.begun = False
        self._listeners = list[Callable[[], None]]()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Have `listener` called when the drain begins."""
        self._listeners.append(listener)

    def begin(self) -> None:
        """Begin the drain."""
        if not self.begun:
            self.begun = True
            for listener in self._listeners:
                listener()


class RequestContext(CallContext):
    """One request. `headers` are added to its response, also to an error.

    `route` is one of few words, the first of them (before `_`) the surface: it is a label of
    metrics. `template` is the path with its parameters named; the path itself may hold a secret and
    is kept nowhere. `outcome` is what became of a paid call, for metrics. `waited` are the seconds
    that the call of a model has waited for its client's body. The media host knows tasks by the uid
    of their object alone (`task_uid`). `content` is what an admin has logged of an LLM call, None
    otherwise. A HEAD is served as the GET of its path (`is_head`): its response has no body. What a
    page calls for its user is `is_inner`: its errors are the page's to show.
    `sender` sends the response; frameworks wrap what they pass on as `send`.
    """

    __slots__ = (
        "content",
        "headers",
        "is_head",
        "is_inner",
        "outcome",
        "route",
        "sender",
        "task_uid",
        "template",
        "waited",
    )

    sender: Send

    def __init__(self, request_id: str, span: Span = NO_SPAN) -> None:
        super().__init__(request_id, span)
        self.route = "other"
        self.template: str | None = None
        self.task_uid: str | None = None
        self.headers: list[Header] = []
        self.is_head = False
        self.is_inner = False
        self.outcome = "accepted"
        self.waited = 0.0
        self.content: dict[str, str] | None = None

    def add_vary(self, names: bytes) -> None:
        """Name request headers on which the response depends, in one `Vary` with those before."""
        for place, (name, value) in enumerate(self.headers):
            if name == b"vary":
                self.headers[place] = name, b"%b, %b" % (value, names)
                return
        self.headers.append((b"vary", names))


def get_context(scope: MutableMapping[str, Any]) -> RequestContext:
    """Return the context of the request that `scope` describes."""
    context: RequestContext = scope[SCOPE_KEY]
    return context
