"""JSON-RPC messages: parsing of one POST, errors, and the bytes of responses. Pure."""

import gc
from dataclasses import dataclass
from typing import Any, TypeGuard

import orjson
from mcp.types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
)

from gateway_web.responses import JSON, NO_STORE, Response

__all__ = [
    "HEADER_MISMATCH",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
]

MOST_COLLECTED_BYTES = 256 * 1024
"""Of a body: the collector walks all objects of a longer one again and again while it is parsed."""
MOST_ID_CHARACTERS = 256
"""Of ids of requests and of progress tokens, which a waiting call keeps."""

RequestId = str | int


class RpcError(Exception):
    """A JSON-RPC error, and the HTTP status of a response that has nothing else.

    `request_id` is the id of a request that is no message otherwise.
    """

    def __init__(self, code: int, message: str, *, status: int = 400, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.data = data
        self.request_id: RequestId | None = None


@dataclass(slots=True)
class Message:
    """A request, or a notification (`id` is None). `params` is {} where there are none."""

    method: str
    id: RequestId | None
    params: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """`params._meta`; {} where it is no object."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


def parse_message(raw: bytes) -> Message | None:
    """Return the message of a body; None for a response, which answers no request of ours.

    Raises RpcError: no JSON, a batch, or no message of JSON-RPC 2.0.
    """
    try:
        body = _load(raw)
    except orjson.JSONDecodeError:
        raise RpcError(PARSE_ERROR, "The body is not valid JSON.") from None
    if not isinstance(body, dict):
        raise RpcError(INVALID_REQUEST, "The body must be one JSON-RPC message; no batch.")
    try:
        return _read_message(body)
    except RpcError as error:
        request_id = body.get("id")
        error.request_id = request_id if is_id(request_id) else None
        raise


def _load(raw: bytes) -> Any:
    if len(raw) <= MOST_COLLECTED_BYTES or not gc.isenabled():
        return orjson.loads(raw)
    gc.disable()
    try:
        return orjson.loads(raw)
    finally:
        gc.enable()


def _read_message(body: dict[str, Any]) -> Message | None:
    if body.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'The body must have "jsonrpc": "2.0".')
    has_id = "id" in body
    if has_id and not is_id(body["id"]):
        raise RpcError(INVALID_REQUEST, "The id must be a short string or an integer.")
    if "method" not in body and has_id and ("result" in body or "error" in body):
        return None
    # clients in languages without absent values send null
    method, params = body.get("method"), {} if body.get("params") is None else body["params"]
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "The method must be a string.")
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "The params must be an object.")
    return Message(method, body["id"] if has_id else None, params)


def is_id(value: object) -> TypeGuard[RequestId]:
    """Return whether JSON-RPC and MCP take the value as an id, or as a progress token."""
    if isinstance(value, str):
        return len(value) <= MOST_ID_CHARACTERS
    return isinstance(value, int) and not isinstance(value, bool)


def render_result(request_id: RequestId, result: Any) -> bytes:
    """Return the response with a result."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def render_error(request_id: RequestId | None, error: RpcError) -> bytes:
    """Return the response with an error."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": body})


def render_notification(method: str, params: Any) -> bytes:
    """Return a notification."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method, "params": params})


def to_response(request_id: RequestId | None, error: RpcError) -> Response:
    """Return the HTTP response of an error."""
    return Response(error.status, render_error(request_id, error), (JSON, NO_STORE))
