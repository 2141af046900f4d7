"""Errors as responses, in the four dialects of contract §0.1, §1.1 and §1.2."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.exceptions import HTTPException

from gateway_core.api.errors import (
    Conflict,
    CreditLimitExceeded,
    GatewayError,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    MissingKey,
    NotFound,
    OAuthError,
    RangeNotSatisfiable,
    RateLimited,
    TooManyCalls,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    UpstreamRateLimited,
)
from gateway_core.llm.formats.sse import ErrorForm, retry_info
from gateway_web.context import Header
from gateway_web.responses import JSON, NO_STORE, Response, list_rate_headers

NATIVE_ACTIONS = frozenset(
    {
        "batchEmbedContents",
        "countTokens",
        "embedContent",
        "generateContent",
        "predict",
        "streamGenerateContent",
    }
)
"""Words after the last colon of a path that make it native for a GET, too (contract §8.1)."""


_READ_BY_ANY_ORIGIN = frozenset({"/oauth/register", "/oauth/token", "/oauth/revoke"})


class Dialect(Enum):
    """The form of errors."""

    TASK = "task"
    OPENAI = "openai"
    GOOGLE = "google"
    OAUTH = "oauth"


def may_be_read_by_any_origin(path: str) -> bool:
    """Return whether pages of every origin may read the response (contract §0.11)."""
    return path.startswith("/.well-known/") or path in _READ_BY_ANY_ORIGIN


def choose_dialect(scope: Mapping[str, Any]) -> Dialect:
    """Return the dialect of the request that the ASGI `scope` describes."""
    path: str = scope["path"]
    if path.startswith(("/oauth/", "/.well-known/")) or path in ("/oauth", "/.well-known"):
        return Dialect.OAUTH
    if path == "/v1beta" or path.startswith("/v1beta/"):
        return Dialect.GOOGLE
    if path != "/v1" and not path.startswith("/v1/"):
        return Dialect.TASK
    if path.startswith("/v1/models/") and ":" in path:
        action = path.rpartition(":")[2]
        if scope["method"] == "POST" or action in NATIVE_ACTIONS:
            return Dialect.GOOGLE
    names = {name for name, _ in scope["headers"]}
    if b"authorization" in names:
        return Dialect.OPENAI
    query = scope["query_string"].decode("latin-1")
    native = b"x-goog-api-key" in names or any(
        name == "key" for name, _ in parse_qsl(query, keep_blank_values=True)
    )
    return Dialect.GOOGLE if native else Dialect.OPENAI


_NAMES: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("invalid_request_error", "UNAUTHENTICATED"),
    402: ("insufficient_quota", "FAILED_PRECONDITION"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("invalid_request_error", "NOT_FOUND"),
    405: ("invalid_request_error", "UNIMPLEMENTED"),
    408: ("invalid_request_error", "DEADLINE_EXCEEDED"),
    409: ("invalid_request_error", "ABORTED"),
    413: ("invalid_request_error", "INVALID_ARGUMENT"),
    415: ("invalid_request_error", "INVALID_ARGUMENT"),
    416: ("invalid_request_error", "OUT_OF_RANGE"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    431: ("invalid_request_error", "INVALID_ARGUMENT"),
    500: ("server_error", "INTERNAL"),
    502: ("server_error", "UNAVAILABLE"),
    501: ("invalid_request_error", "UNIMPLEMENTED"),
    503: ("server_error", "UNAVAILABLE"),
    504: ("server_error", "DEADLINE_EXCEEDED"),
    505: ("invalid_request_error", "UNIMPLEMENTED"),
}
"""OpenAI `type` and Google `status` of each HTTP status."""

_OAUTH_CODES = {
    401: "invalid_client",
    403: "access_denied",
    429: "temporarily_unavailable",
    503: "temporarily_unavailable",
}
_NOT_IN_DESCRIPTION = re.compile(r"[^ !#-\[\]-~]")
"""What RFC 6749 does not let into an `error_description`."""

_RESPONSE_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""Codes of failed Responses objects, of which the API has a closed list."""

NO_RETRY: Header = (b"x-should-retry", b"false")


def find_kind(error: type[GatewayError], status: int) -> tuple[str, str]:
    """OpenAI's `type` and Google's `status` of an error of this class and HTTP status."""
    openai_type, google_status = _NAMES[status]
    if issubclass(error, CreditLimitExceeded):
        openai_type = "insufficient_quota"
    return openai_type, google_status


def render_error(error: GatewayError, dialect: Dialect) -> Response:
    """Return the response that reports `error`."""
    status = error.status
    openai_type, google_status = find_kind(type(error), status)
    if dialect is Dialect.TASK:
        body: dict[str, Any] = {"error": error.message}
        if isinstance(error, InvalidRequest) and error.errors:
            body["errors"] = error.errors
    elif dialect is Dialect.OPENAI:
        body = {
            "error": {
                "message": error.message,
                "type": openai_type,
                "param": error.param,
                "code": error.code,
            }
        }
    elif dialect is Dialect.OAUTH:
        code = "server_error" if status >= 500 else "invalid_request"
        code = error.code if isinstance(error, OAuthError) else _OAUTH_CODES.get(status, code)
        body = {
            "error": code,
            "error_description": _NOT_IN_DESCRIPTION.sub("'", error.message),
        }
    else:
        wait = _find_wait(error)
        details = [] if wait is None else [retry_info(wait)]
        message = error.message
        if isinstance(error, MissingKey) and not error.header:
            message = "An API key is required: x-goog-api-key: <key>."
        body = {
            "error": {
                "code": status,
                "message": message,
                "status": google_status,
                "details": details,
            }
        }
    return Response(status, orjson.dumps(body), (JSON, NO_STORE, *list_error_headers(error)))


def describe_error(error: GatewayError) -> ErrorForm:
    """Return the words of `error` for the last frame of a stream."""
    openai_type, google_status = find_kind(type(error), error.status)
    return ErrorForm(
        error.message,
        error.status,
        openai_type,
        error.code,
        google_status,
        _RESPONSE_CODES.get(error.status, "server_error"),
        _find_wait(error),
    )


def to_gateway_error(error: Exception, request_id: str) -> GatewayError:
    """`error` as one of the tree; an unknown one is a defect of the gateway, without details."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return NotFound("Not found.")
        if error.status_code == 405:
            allow = (error.headers or {}).get("Allow", "")
            return MethodNotAllowed(", ".join(sorted(allow.split(", "))))
        return InvalidRequest("The request is malformed.")
    return Internal(f"The gateway failed on this request; its id is {request_id}.")


def list_error_headers(error: GatewayError) -> list[Header]:
    """Return the headers that belong to an error, in every dialect."""
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, OAuthError) and error.basic:
        return [(b"www-authenticate", b'Basic realm="oauth"')]
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", error.allow.encode())]
    if isinstance(error, Conflict | CreditLimitExceeded):
        return [NO_RETRY]
    if isinstance(error, UnsupportedMediaType):
        headers = [(b"accept", error.accept.encode())]
        # RFC 9110, 15.5.16
        return [*headers, (b"accept-encoding", b"identity")] if error.is_encoded else headers
    if isinstance(error, RangeNotSatisfiable):
        return [(b"content-range", b"bytes */%d" % error.size)]
    wait = _find_wait(error)
    if wait is None:
        return []
    state = list_rate_headers(error.state) if isinstance(error, RateLimited) else []
    return [(b"retry-after", b"%d" % wait), *state]


def _find_wait(error: GatewayError) -> int | None:
    """Return the seconds after which the client may call again."""
    if isinstance(error, RateLimited | TooManyCalls | Unavailable | UpstreamRateLimited):
        return error.retry_after
    return None
