"""Uploads in the document. Pure."""

from typing import Any

from gateway_apiserver.openapi.compat import describe_key, describe_operation
from gateway_apiserver.openapi.schemas import Schema, close_schema
from gateway_apiserver.surfaces.uploads.requests import LONGEST_TYPE
from gateway_core.api.upload import MOST_PARTS
from gateway_core.files.files import LONGEST_SECONDS, PURPOSES, SHORTEST_SECONDS
from gateway_core.files.uploads import MOST_BYTES

PATH = "/v1/uploads"
_REFUSALS = (400, 401, 403, 409, 413, 415, 500, 503, 504)
_OF_ONE = (*_REFUSALS, 404)
_UPLOAD_ID = {
    "name": "upload_id",
    "in": "path",
    "required": True,
    # a slash in it would be another path
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
}


def describe_uploads() -> dict[str, Any]:
    """The four paths."""
    create = describe_operation(
        "createUpload",
        "Begin a file in parts",
        "Upload",
        (*_REFUSALS, 429),
        body=_describe_wanted(),
    )
    create["parameters"] = [describe_key("Upload")]
    add = describe_operation("addUploadPart", "Send a part", "UploadPart", _OF_ONE)
    add["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": _describe_form()}},
    }
    complete = describe_operation(
        "completeUpload", "Make the File of its parts", "Upload", _OF_ONE, body=_describe_list()
    )
    cancel = describe_operation("cancelUpload", "Give an Upload up", "Upload", _OF_ONE)
    cancel["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    one = f"{PATH}/{{upload_id}}"
    return {
        PATH: {"post": create},
        f"{one}/parts": {"parameters": [_UPLOAD_ID], "post": add},
        f"{one}/complete": {"parameters": [_UPLOAD_ID], "post": complete},
        f"{one}/cancel": {"parameters": [_UPLOAD_ID], "post": cancel},
    }


def describe_upload_shapes() -> dict[str, Schema]:
    """The answers, beside `File`."""
    text: Schema = {"type": "string", "minLength": 1}
    moment: Schema = {"type": "integer", "minimum": 0}
    upload_id: Schema = {"type": "string", "pattern": "^upload_[a-z2-7]{26}$"}
    file = {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/File"}]}
    return {
        "Upload": close_schema(
            {
                "id": upload_id,
                "object": {"const": "upload"},
                "bytes": {"type": "integer", "minimum": 1},
                "created_at": moment,
                "expires_at": moment,
                "filename": text,
                "purpose": {"enum": list(PURPOSES)},
                "status": {"enum": ["pending", "completed", "cancelled", "expired"]},
                "file": file,
            }
        ),
        "UploadPart": close_schema(
            {
                "id": {"type": "string", "pattern": "^part_[a-z2-7]{26}$"},
                "object": {"const": "upload.part"},
                "created_at": moment,
                "upload_id": upload_id,
            }
        ),
    }


def _describe_wanted() -> Schema:
    """A form for each purpose: they have limits of their own."""
    seconds = {"type": "integer", "minimum": SHORTEST_SECONDS, "maximum": LONGEST_SECONDS}
    life = {
        "type": ["object", "null"],
        "required": ["anchor", "seconds"],
        "properties": {"anchor": {"const": "created_at"}, "seconds": seconds},
    }

    def describe(purpose: str) -> Schema:
        return {
            "type": "object",
            "required": ["bytes", "filename", "mime_type", "purpose"],
            "properties": {
                "bytes": {"type": "integer", "minimum": 1, "maximum": MOST_BYTES[purpose]},
                "filename": {"type": "string", "minLength": 1},
                "mime_type": {"type": "string", "minLength": 1, "maxLength": LONGEST_TYPE},
                "purpose": {"const": purpose},
                "expires_after": life,
            },
        }

    return {"oneOf": [describe(purpose) for purpose in PURPOSES]}


def _describe_form() -> Schema:
    data = {"type": "string", "format": "binary", "minLength": 1}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _describe_list() -> Schema:
    part_ids = {
        "type": "array",
        "description": "In the order that their bytes are to have.",
        "minItems": 1,
        "maxItems": MOST_PARTS,
        "uniqueItems": True,
        "items": {"type": "string", "minLength": 1},
    }
    md5 = {
        "type": ["string", "null"],
        "pattern": "^([0-9a-fA-F]{32}|[A-Za-z0-9+/]{22}==)$",
        "description": "Of the whole file, in hexadecimal digits or base64.",
    }
    return {
        "type": "object",
        "required": ["part_ids"],
        "properties": {"part_ids": part_ids, "md5": md5},
    }
