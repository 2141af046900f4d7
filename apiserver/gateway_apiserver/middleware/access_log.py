"""The line that each request leaves in the log; used by `edge`.

It has the template of the route and never the path or the query: a path may be an address that
opens something, and a key may stand in a query (contract §0.10).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import structlog
from starlette.types import Scope

from gateway_apiserver.context import RequestContext

_log = structlog.get_logger(__name__)

LOGGER = __name__
_MOST_CLIENT_ID = 512
_CREDENTIAL = re.compile(r"(sk|mk)-[a-z2-7]{8}_|whsec_|bearer", re.IGNORECASE)
_QUIET = frozenset({"operations_health"})
"""What load balancers ask every few seconds."""

Which = Literal["all", "notable", "off"]
Write = Callable[[str, Mapping[str, Any]], None]


def _write_by_structlog(event: str, facts: Mapping[str, Any]) -> None:
    _log.info(event, **facts)


class AccessLog:
    """Writes lines by `write`: `all`, `notable` ones (no GET that went well), or none (`off`)."""

    def __init__(self, which: Which = "all", write: Write = _write_by_structlog) -> None:
        self._which = which
        self._write = write

    def note(self, scope: Scope, context: RequestContext, status: int, seconds: float) -> None:
        """Takes in one request that was answered."""
        if self._which == "off":
            return
        if 0 < status < 400 and (
            context.route in _QUIET
            or (self._which == "notable" and scope["method"] in ("GET", "HEAD"))
        ):
            return
        facts: dict[str, Any] = {
            "request_id": context.request_id,
            "method": scope["method"],
            "route": context.template or "other",
            "status": status,
            "duration_ms": round(seconds * 1000, 1),
        }
        if context.account is not None:
            facts["account"] = context.account
        if context.task is not None:
            facts["task"] = context.task
        if context.task_uid is not None:
            facts["task_uid"] = context.task_uid
        client_id = _read_client_id(scope)
        if client_id is not None:
            facts["client_request_id"] = client_id
        trace = context.span.context
        if trace is not None:
            facts["trace_id"] = trace.trace_id
        self._write("answered", facts)


def _read_client_id(scope: Scope) -> str | None:
    """`X-Client-Request-Id` where it is visible ASCII of at most 512 characters (§0.8).

    One that looks like a credential is somebody's mistake, and is not written down.
    """
    for name, value in scope["headers"]:
        if name == b"x-client-request-id":
            text: str = value.decode("latin-1")
            fits = len(text) <= _MOST_CLIENT_ID and all("!" <= char <= "~" for char in text)
            return text if fits and not _CREDENTIAL.search(text) else None
    return None
