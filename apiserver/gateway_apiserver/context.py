"""State of one request: id, account, metric labels, response headers and span."""

from collections.abc import MutableMapping
from typing import Any

from gateway_core.observability.tracing import NO_SPAN, Span

SCOPE_KEY = "gateway.trace"

Header = tuple[bytes, bytes]


class RequestContext:
    """One request. `headers` go on its answer whatever that turns out to be.

    `route` is one of few words, the first of them (before `_`) the surface: it is a label of
    metrics. `template` is the path with its variable parts named, where a framework does not know
    it; a path itself may hold what is nobody's business, and is kept nowhere. `task` is an id as
    clients have it; the media host knows tasks by the uid of their object alone.
    """

    __slots__ = (
        "account",
        "headers",
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
        self.span = span


def get_context(scope: MutableMapping[str, Any]) -> RequestContext:
    """The trace of the request that `scope` describes."""
    trace: RequestContext = scope[SCOPE_KEY]
    return trace
