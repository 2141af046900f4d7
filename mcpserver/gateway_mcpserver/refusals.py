"""Errors that end a request before its message is answered, as HTTP responses (contract §0.1).

401 and 403 of the endpoint are OAuth errors with a challenge, all others JSON-RPC errors.
Errors of other paths have the dialect of their path.
"""

import orjson
from starlette.types import Scope

from gateway_core.api.errors import Forbidden, GatewayError, OAuthError, Unauthenticated
from gateway_core.oauth.discovery import ENDPOINT_PATHS
from gateway_mcpserver.authentication import Challenges, InsufficientScope
from gateway_mcpserver.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    RpcError,
    render_error,
)
from gateway_web.context import Header
from gateway_web.errors import choose_dialect, list_error_headers
from gateway_web.errors import render_error as render_in_dialect
from gateway_web.responses import JSON, NO_STORE, Response


class RefusalRenderer:
    """Renders a `GatewayError`."""

    def __init__(self, mcp_url: str) -> None:
        self._challenges = Challenges(mcp_url)

    def render(self, scope: Scope, error: GatewayError) -> Response:
        """Return the response; in the dialect of its path outside the endpoint."""
        if scope["path"] not in ENDPOINT_PATHS:
            return render_in_dialect(error, choose_dialect(scope))
        if isinstance(error, Unauthenticated):
            challenge = self._challenges.describe(error, scope["path"])
            return _render_oauth(401, "invalid_token", error.message, challenge)
        if isinstance(error, InsufficientScope):
            challenge = self._challenges.describe(error, scope["path"])
            return _render_oauth(403, error.code, error.message, challenge)
        if isinstance(error, Forbidden | OAuthError):
            return _render_oauth(error.status, "access_denied", error.message)
        code = INTERNAL_ERROR if error.status >= 500 else INVALID_REQUEST
        body = render_error(None, RpcError(code, error.message))
        return Response(error.status, body, (JSON, NO_STORE, *list_error_headers(error)))


def _render_oauth(status: int, code: str, text: str, *headers: Header) -> Response:
    body = orjson.dumps({"error": code, "error_description": text})
    return Response(status, body, (JSON, NO_STORE, *headers))
