"""Batches in the document. Pure."""

from typing import Any

from gateway_apiserver.openapi.compat import describe_key, describe_operation
from gateway_apiserver.openapi.schemas import Schema, close_schema
from gateway_apiserver.surfaces.batches.requests import (
    ENDPOINT,
    MOST_KEY,
    MOST_PAIRS,
    MOST_VALUE,
    WINDOW,
)
from gateway_apiserver.surfaces.batches.routes import MOST_LISTED, USUALLY_LISTED
from gateway_core.files.files import LONGEST_SECONDS, SHORTEST_SECONDS

PATH = "/v1/batches"
_READ = (401, 403, 404, 500, 503)
_STATES = (
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
)
_TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_METADATA: Schema = {
    "type": ["object", "null"],
    "maxProperties": MOST_PAIRS,
    "propertyNames": {"maxLength": MOST_KEY},
    "additionalProperties": {"type": "string", "maxLength": MOST_VALUE},
}


def describe_batches() -> dict[str, Any]:
    """The paths."""
    create = describe_operation(
        "createBatch",
        "Run the moderations of a File",
        "Batch",
        (400, 401, 403, 404, 409, 413, 415, 429, 500, 503, 504),
        body=_describe_body(),
        paid=True,
    )
    create["parameters"] = [describe_key("Batch")]
    listed = describe_operation(
        "listBatches", "Batches, the newest first", "BatchList", (400, *_READ)
    )
    limit = {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": USUALLY_LISTED}
    listed["parameters"] = [
        {"name": "after", "in": "query", "schema": {"type": "string", "minLength": 1}},
        {"name": "limit", "in": "query", "schema": limit},
    ]
    name = {
        "name": "batch_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^batch_[a-z0-9-]{1,57}$"},
    }
    show = describe_operation("showBatch", "One Batch", "Batch", _READ)
    cancel = describe_operation(
        "cancelBatch",
        "End a Batch early",
        "Batch",
        (400, 401, 403, 404, 409, 413, 415, 500, 503, 504),
    )
    return {
        PATH: {"post": create, "get": listed},
        PATH + "/{batch_id}": {"parameters": [name], "get": show},
        PATH + "/{batch_id}/cancel": {"parameters": [name], "post": cancel},
    }


def describe_batch_shapes() -> dict[str, Schema]:
    """The schemas that the paths name."""
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    optional = {"type": ["string", "null"]}
    moment = {"type": ["integer", "null"]}
    error = close_schema(
        {
            "code": text,
            "message": text,
            "param": optional,
            "line": {"type": ["integer", "null"], "minimum": 1},
        }
    )
    errors = close_schema({"object": {"const": "list"}, "data": {"type": "array", "items": error}})
    batch = close_schema(
        {
            "id": text,
            "object": {"const": "batch"},
            "endpoint": {"const": ENDPOINT},
            "model": optional,
            "errors": {"anyOf": [{"type": "null"}, errors]},
            "input_file_id": text,
            "completion_window": {"const": WINDOW},
            "status": {"enum": list(_STATES)},
            "output_file_id": optional,
            "error_file_id": optional,
            "created_at": count,
            "expires_at": count,
            **dict.fromkeys(_TIMES, moment),
            "request_counts": close_schema({"total": count, "completed": count, "failed": count}),
            "usage": {"type": "null"},
            "metadata": _METADATA,
        }
    )
    page = close_schema(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Batch"}},
            "first_id": optional,
            "last_id": optional,
            "has_more": {"type": "boolean"},
        }
    )
    return {"Batch": batch, "BatchList": page}


def _describe_body() -> Schema:
    """A body; what is in it beside these is ignored."""
    life = {
        "type": ["object", "null"],
        "required": ["anchor", "seconds"],
        "properties": {
            "anchor": {"const": "created_at"},
            "seconds": {
                "type": "integer",
                "minimum": SHORTEST_SECONDS,
                "maximum": LONGEST_SECONDS,
            },
        },
    }
    return {
        "type": "object",
        "required": ["input_file_id", "endpoint", "completion_window"],
        "properties": {
            "input_file_id": {"type": "string", "minLength": 1},
            "endpoint": {"const": ENDPOINT},
            "completion_window": {"const": WINDOW},
            "metadata": _METADATA,
            "output_expires_after": life,
        },
    }
