"""State of one request: id, account, metric labels, rate, response headers and span."""

from collections.abc import MutableMapping
from typing import Any

from gateway_core.api.errors import RateState
from gateway_core.observability.tracing import NO_SPAN, Span

SCOPE_KEY = "gateway.trace"

Header = tuple[bytes, bytes]


class RequestContext:
    """One request. `headers` are added to its response, also to an error.

    `route` is one of few words, the first of them (before `_`) the surface: it is a label of
    metrics. `template` is the path with its parameters named; the path itself may hold a secret and
    is kept nowhere. `rate` is the state of the account's window, for the rate headers (§12.2).
    `outcome` is what became of a paid call, for metrics. `task` is an id as clients have it; the
    media host knows tasks by the uid of their object alone.
    """

    __slots__ = (
        "account",
        "headers",
        "outcome",
        "rate",
        "request_id",
        "route",
        "span",
        "task",
        "task_uid",
        "template",
    )

    def __init__(self, request_id: str, span: Span = NO_SPAN) -> None:
        self.request_id = request_id
        self.route = "other"
        self.template: str | None = None
        self.account: str | None = None
        self.task: str | None = None
        self.task_uid: str | None = None
        self.headers: list[Header] = []
        self.rate: RateState | None = None
        self.outcome = "accepted"
        self.span = span


def get_context(scope: MutableMapping[str, Any]) -> RequestContext:
    """The context of the request that `scope` describes."""
    context: RequestContext = scope[SCOPE_KEY]
    return context
