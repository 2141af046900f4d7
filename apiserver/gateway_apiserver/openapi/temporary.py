"""Temporary files in the OpenAPI document. Pure."""

from typing import Any

from gateway_apiserver.openapi.answers import FREE_RATE_TEXT, describe_answer, describe_refusal
from gateway_apiserver.openapi.schemas import (
    NOT_BLANK,
    Schema,
    close_schema,
    describe_public_url,
    inline_schema,
)
from gateway_apiserver.surfaces.bodies import MOST_KEY_CHARACTERS
from gateway_apiserver.surfaces.temporary_files.objects import CREATE_PATH
from gateway_apiserver.surfaces.temporary_files.requests import MOST_FILENAME_CHARACTERS
from gateway_apiserver.surfaces.temporary_files.routes import (
    CONFIRM_PATH,
    PREPARE_PATH,
    PreparedFile,
    TemporaryFile,
)
from gateway_core.files.files import USER_DATA_BYTES

_REFUSALS = (401, 403, 413, 415, 500, 503)
_FILENAME: Schema = {"type": "string", "minLength": 1, "maxLength": MOST_FILENAME_CHARACTERS}


def describe_temporary_files() -> dict[str, Any]:
    """The paths."""
    url = close_schema({"type": {"const": "url"}, "url": describe_public_url()})
    data: Schema = {
        "type": "string",
        "pattern": "^([A-Za-z0-9+/]{4})+$",
        "description": "Base64, or a data: URL of it; whitespace in it is passed over.",
    }
    base64 = close_schema({"type": {"const": "base64"}, "data": data})
    source = {"oneOf": [url, base64]}
    create = close_schema(
        {"source": source, "file_name": {**_FILENAME, "type": ["string", "null"]}}, ("file_name",)
    )
    size: Schema = {"type": "integer", "minimum": 1, "maximum": USER_DATA_BYTES}
    checksum: Schema = {
        "type": "string",
        "pattern": "^[A-Za-z0-9+/]{21}[AQgw]==$",
        "description": "The MD5 digest of the bytes, in base64.",
    }
    prepare = close_schema({"filename": _FILENAME, "byte_size": size, "checksum": checksum})
    confirm = close_schema({"signed_id": {"type": "string", "minLength": 1}})
    file, prepared = "TemporaryFile", "PreparedFile"
    made = _describe("createTemporaryFile", "Keeps a file for a day", create, file, 409, 429, 504)
    return {
        CREATE_PATH: {"post": {**made, "parameters": [_KEY]}},
        PREPARE_PATH: {
            "post": _describe("prepareTemporaryFile", "Where to put a file", prepare, prepared, 429)
        },
        CONFIRM_PATH: {
            "post": _describe(
                "confirmTemporaryFile", "Keeps what was put", confirm, file, 404, 409, 504
            )
        },
    }


def describe_temporary_shapes() -> dict[str, Schema]:
    """The schemas that the paths name."""
    return {
        "TemporaryFile": inline_schema(TemporaryFile.model_json_schema(mode="serialization")),
        "PreparedFile": inline_schema(PreparedFile.model_json_schema(mode="serialization")),
    }


_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Names the call: repeated, it is answered with the same file.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": MOST_KEY_CHARACTERS,
        "pattern": NOT_BLANK,
    },
}
_TEXTS = {
    409: "The Idempotency-Key stands for other input, or nothing was uploaded yet.",
    429: FREE_RATE_TEXT,
    413: "The file is too large, or the account's storage does not hold it.",
    504: "The file was not acknowledged in time; it may have been created.",
}


def _describe(
    operation_id: str, summary: str, body: Schema, schema: str, *others: int
) -> dict[str, Any]:
    responses = {"201": describe_answer(summary + ".", schema)}
    responses["400"] = describe_refusal(400, schemas=("Error", "FieldErrors"))
    for status in (*_REFUSALS, *others):
        needed = ("Retry-After",) if status == 429 else ()
        responses[str(status)] = describe_refusal(status, needed, text=_TEXTS.get(status, ""))
    return {
        "operationId": operation_id,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": dict(sorted(responses.items())),
    }
