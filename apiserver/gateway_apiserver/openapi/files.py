"""Files in the document. Pure."""

from typing import Any

from gateway_apiserver.openapi.answers import describe_refusal
from gateway_apiserver.openapi.compat import ERROR, describe_operation
from gateway_apiserver.openapi.schemas import Schema, close_schema
from gateway_core.files.files import (
    LONGEST_SECONDS,
    PURPOSES,
    SHORTEST_SECONDS,
    SHOWN_PURPOSES,
)

PATH = "/v1/files"
MOST_LISTED = 10_000
_READ = (401, 403, 404, 500, 503)
_FILE_ID = {
    "name": "file_id",
    "in": "path",
    "required": True,
    # a slash in it would be another path
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
}


def describe_files() -> dict[str, Any]:
    """The paths."""
    create = describe_operation(
        "createFile", "Store a file", "File", (400, 401, 403, 413, 415, 429, 500, 503, 504)
    )
    create["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": _describe_form()}},
    }
    listing = describe_operation("listFiles", "Files of the account", "FileList", (400, *_READ))
    listing["parameters"] = [
        _describe_query("after", {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}),
        _describe_query(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": MOST_LISTED},
        ),
        _describe_query("order", {"enum": ["asc", "desc"], "default": "desc"}),
        _describe_query("purpose", {"enum": list(SHOWN_PURPOSES)}),
    ]
    show = describe_operation("showFile", "A file without its bytes", "File", _READ)
    delete = describe_operation("deleteFile", "Delete a file", "DeletedFile", (*_READ, 504))
    return {
        PATH: {"get": listing, "post": create},
        PATH + "/{file_id}": {
            "parameters": [_FILE_ID],
            "get": show,
            "delete": delete,
        },
        PATH + "/{file_id}/content": {"parameters": [_FILE_ID], "get": _describe_content()},
    }


def describe_file_shapes() -> dict[str, Schema]:
    """The answers."""
    number = {"type": "integer", "minimum": 0}
    text = {"type": "string", "minLength": 1}
    file_id = {"type": "string", "pattern": "^file-[a-z2-7]{26}$"}
    file = close_schema(
        {
            "id": file_id,
            "object": {"const": "file"},
            "bytes": number,
            "created_at": {**number, "description": "Unix seconds, as all times here."},
            "expires_at": {"type": ["integer", "null"]},
            "filename": text,
            "purpose": {"enum": list(SHOWN_PURPOSES)},
            "status": {"const": "processed"},
            "status_details": {"type": "null"},
        }
    )
    cursor = {"type": ["string", "null"]}
    return {
        "File": file,
        "FileList": close_schema(
            {
                "object": {"const": "list"},
                "data": {"type": "array", "items": {"$ref": "#/components/schemas/File"}},
                "first_id": cursor,
                "last_id": cursor,
                "has_more": {"type": "boolean"},
            }
        ),
        "DeletedFile": close_schema(
            {"id": file_id, "object": {"const": "file"}, "deleted": {"const": True}}
        ),
    }


def _describe_form() -> Schema:
    return {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary", "minLength": 1},
            "purpose": {"enum": list(PURPOSES)},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {
                "type": "integer",
                "minimum": SHORTEST_SECONDS,
                "maximum": LONGEST_SECONDS,
            },
        },
        "dependentRequired": {
            "expires_after[anchor]": ["expires_after[seconds]"],
            "expires_after[seconds]": ["expires_after[anchor]"],
        },
    }


def _describe_query(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


def _describe_content() -> dict[str, Any]:
    described = describe_operation("readFileContent", "A file's bytes", "File", _READ)
    bytes_ = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    described["responses"] |= {
        "200": {"description": "All of them.", "content": bytes_},
        "206": {"description": "The one range that was asked for.", "content": bytes_},
        "304": {"description": "They are those of the ETag that was sent."},
        "416": describe_refusal(
            416, schemas=(ERROR,), text="The range lies beyond the end of the file."
        ),
    }
    return described
