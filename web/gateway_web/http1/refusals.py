"""Responses of a connection in place of the application, to what never becomes a request."""

from collections.abc import Sequence
from urllib.parse import unquote

from gateway_core.api.errors import GatewayError
from gateway_web.context import Header
from gateway_web.errors import choose_dialect, render_error
from gateway_web.http1.exchange import STATUS_LINES
from gateway_web.http1.framing import Refused

RETRY_SECONDS = 5
_CODES = {
    400: "invalid_http",
    408: "request_timeout",
    431: "headers_too_large",
    501: "not_implemented",
    503: "service_unavailable",
    505: "version_not_supported",
}


def write_refusal(
    refusal: Refused, request_id: str, method: str, target: bytes, headers: Sequence[Header]
) -> bytes:
    """Return the response that refuses a request of which so much is known; `target` may be empty.

    In the dialect of the request's path (contract §0.1).
    """
    status = refusal.status
    error = GatewayError(str(refusal), code=_CODES[status])
    error.status = status
    path, _, query = target.partition(b"?")
    known = {"path": unquote(path.decode("latin-1")), "query_string": query}
    dialect = choose_dialect({**known, "method": method, "headers": headers})
    body = render_error(error, dialect).body
    retry = f"retry-after: {RETRY_SECONDS}\r\n" if status == 503 else ""
    head = (
        "content-type: application/json\r\n"
        "cache-control: no-store\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {request_id}\r\n"
        f"{retry}"
        "connection: close\r\n\r\n"
    )
    return STATUS_LINES[status] + head.encode() + body
