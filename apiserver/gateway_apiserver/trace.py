"""What is known of one request while it is served: its id, whose it is, headers it earned.

Made by `edge`, filled in by routes, read again for the answer's headers and the log line.
"""

from collections.abc import MutableMapping
from typing import Any

SCOPE_KEY = "gateway.trace"

Header = tuple[bytes, bytes]


class Trace:
    """One request. `headers` go on its answer whatever that turns out to be."""

    __slots__ = ("account", "headers", "request_id", "route", "task")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.route = "other"
        self.account: str | None = None
        self.task: str | None = None
        self.headers: list[Header] = []


def trace_of(scope: MutableMapping[str, Any]) -> Trace:
    """The trace of the request that `scope` describes."""
    trace: Trace = scope[SCOPE_KEY]
    return trace
