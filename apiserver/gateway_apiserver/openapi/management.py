"""The part of the document that is Platform Management: the same for every catalog. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from gateway_apiserver.openapi.answers import FREE_RATE_TEXT, describe_answer, describe_refusal
from gateway_apiserver.openapi.schemas import NOT_BLANK, Schema, close_schema, inline_schema
from gateway_apiserver.surfaces.bodies import MOST_KEY_CHARACTERS
from gateway_apiserver.surfaces.management.requests import (
    DeleteQuery,
    GuardrailCreate,
    GuardrailPatch,
    KeyCreate,
    KeyIds,
    KeyPatch,
    KeyQuery,
    ListQuery,
    Query,
    Rotation,
)
from gateway_apiserver.surfaces.management.responses import (
    Assigned,
    Assignment,
    DeletedGuardrail,
    DeletedKey,
    Guardrail,
    Key,
    KeyWithSecret,
    Member,
    Unassigned,
)
from gateway_apiserver.surfaces.management.usage import UsageQuery
from gateway_apiserver.surfaces.management.validation import ROOT

_SHAPES: Mapping[str, type[BaseModel]] = {
    "Key": Key,
    "KeyWithSecret": KeyWithSecret,
    "DeletedKey": DeletedKey,
    "Guardrail": Guardrail,
    "DeletedGuardrail": DeletedGuardrail,
    "Assignment": Assignment,
    "Assigned": Assigned,
    "Unassigned": Unassigned,
    "Member": Member,
}
_READ, _WRITE = (400, 401, 403, 429, 500, 503), (400, 401, 403, 413, 415, 429, 500, 503, 504)
_REPLAYED = ("Idempotent-Replayed",)
_SECURITY = [{"managementKey": list[str]()}]
_TEXTS = {
    429: FREE_RATE_TEXT,
    409: "What is there rules this out, or the Idempotency-Key stands for other input.",
    504: "The change was not acknowledged in time; it may have been made.",
}
_LIMIT_RULE = [
    {
        "properties": {"limit_cents": {"type": "null"}, "limit_window": {"type": "null"}},
    },
    {
        "required": ["limit_cents", "limit_window"],
        "properties": {"limit_cents": {"type": "integer"}, "limit_window": {"type": "string"}},
    },
]
"""An amount and its window, or neither."""


def describe_management() -> dict[str, Any]:
    """The paths."""
    key_id, guardrail_id = _describe_id("key_id", "key"), _describe_id("guardrail_id", "guardrail")
    keys, guardrails = f"{ROOT}/keys", f"{ROOT}/guardrails"
    key, guardrail = keys + "/{key_id}", guardrails + "/{guardrail_id}"
    assignments = guardrail + "/assignments"
    return {
        keys: {
            "get": _describe("listKeys", "Standard keys", _READ, "KeyList", KeyQuery, missing=True),
            "post": _describe_post(
                "createKey", "Make a standard key", KeyCreate, "KeyWithSecret", status=201
            ),
        },
        key: {
            "parameters": [key_id],
            "get": _describe("showKey", "One key", _READ, "Key", missing=True),
            "patch": _describe_body(
                _describe("changeKey", "Change a key", (*_WRITE, 409), "Key", missing=True),
                KeyPatch,
            ),
            "delete": _describe(
                "revokeKey", "Revoke a key for good", (*_READ, 504), "DeletedKey", missing=True
            ),
        },
        key + "/rotate": {
            "parameters": [key_id],
            "post": _describe_post(
                "rotateKey", "Give a key a new secret", Rotation, "KeyWithSecret", optional=True
            ),
        },
        guardrails: {
            "get": _describe(
                "listGuardrails", "Guardrails", _READ, "GuardrailList", ListQuery, missing=True
            ),
            "post": _describe_post(
                "createGuardrail", "Make a guardrail", GuardrailCreate, "Guardrail", status=201
            ),
        },
        guardrail: {
            "parameters": [guardrail_id],
            "get": _describe("showGuardrail", "One guardrail", _READ, "Guardrail", missing=True),
            "patch": _describe_body(
                _describe(
                    "changeGuardrail",
                    "Change a guardrail",
                    (*_WRITE, 409),
                    "Guardrail",
                    missing=True,
                ),
                GuardrailPatch,
            ),
            "delete": _describe(
                "deleteGuardrail",
                "Delete a guardrail",
                (*_READ, 409),
                "DeletedGuardrail",
                DeleteQuery,
                missing=True,
            ),
        },
        assignments: {
            "parameters": [guardrail_id],
            "get": _describe(
                "listAssignments",
                "Keys that a guardrail holds for",
                _READ,
                "AssignmentList",
                ListQuery,
                missing=True,
            ),
            "post": _describe_post("assignKeys", "Put keys under a guardrail", KeyIds, "Assigned"),
        },
        assignments + "/remove": {
            "parameters": [guardrail_id],
            "post": _describe_post(
                "unassignKeys", "Take keys out of a guardrail", KeyIds, "Unassigned"
            ),
        },
        f"{ROOT}/usage": {
            "get": _describe("reportUsage", "What was charged", _READ, "UsageReport", UsageQuery)
        },
        f"{ROOT}/members": {
            "get": _describe(
                "listMembers",
                "Who has a role in the account",
                _READ,
                "MemberList",
                ListQuery,
                missing=True,
            )
        },
        f"{ROOT}/members/{{user_id}}": {
            "parameters": [_describe_id("user_id", "member")],
            "patch": {
                "operationId": "changeMember",
                "summary": "Change a role: only signed in, with no key",
                "security": _SECURITY,
                "responses": {
                    **{str(status): describe_refusal(status) for status in (401, 403)},
                    "429": describe_refusal(429, ("Retry-After",), text=FREE_RATE_TEXT),
                    **{str(status): describe_refusal(status) for status in (500, 503)},
                },
            },
        },
    }


def describe_shapes() -> dict[str, Schema]:
    """The schemas that the paths name."""
    schemas = {
        name: inline_schema(shape.model_json_schema(mode="serialization"))
        for name, shape in _SHAPES.items()
    }
    for name, cursor in (("Key", "string"), ("Guardrail", "string"), ("Assignment", "string")):
        schemas[name + "List"] = _describe_list(name, cursor)
    schemas["MemberList"] = _describe_list("Member", "integer")
    schemas["UsageReport"] = _describe_report()
    return schemas


def _describe(
    operation_id: str,
    summary: str,
    refusals: Iterable[int],
    schema: str,
    query: type[Query] | None = None,
    *,
    missing: bool = False,
    status: int = 200,
    headers: tuple[str, ...] = (),
) -> dict[str, Any]:
    responses = {str(status): describe_answer(summary + ".", schema, optional=headers)}
    for refusal in (*refusals, *((404,) if missing else ())):
        schemas = ("Error", "FieldErrors") if refusal == 400 else ("Error",)
        responses[str(refusal)] = describe_refusal(
            refusal,
            ("Retry-After",) if refusal == 429 else (),
            schemas=schemas,
            text=_TEXTS.get(refusal, ""),
        )
    described: dict[str, Any] = {
        "operationId": operation_id,
        "summary": summary,
        "security": _SECURITY,
        "responses": dict(sorted(responses.items())),
    }
    if query is not None:
        described["parameters"] = _describe_query(query)
    return described


def _describe_post(
    operation_id: str,
    summary: str,
    body: type[BaseModel],
    schema: str,
    *,
    status: int = 200,
    optional: bool = False,
) -> dict[str, Any]:
    described = _describe(
        operation_id,
        summary,
        (*_WRITE, 409),
        schema,
        missing=status != 201,
        status=status,
        headers=_REPLAYED,
    )
    described["parameters"] = [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Names the call: repeated, it is answered the same and done once.",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": MOST_KEY_CHARACTERS,
                "pattern": NOT_BLANK,
            },
        }
    ]
    return _describe_body(described, body, optional=optional)


def _describe_body(
    described: dict[str, Any], body: type[BaseModel], *, optional: bool = False
) -> dict[str, Any]:
    schema = inline_schema(body.model_json_schema())
    if "limit_cents" in schema["properties"] and "required" in schema:
        schema["anyOf"] = _LIMIT_RULE
    content = {"application/json": {"schema": schema}}
    return {**described, "requestBody": {"required": not optional, "content": content}}


def _describe_query(query: type[Query]) -> list[dict[str, Any]]:
    parameters = []
    for name, schema in inline_schema(query.model_json_schema())["properties"].items():
        choices = [part for part in schema.pop("anyOf", []) if part.get("type") != "null"]
        shown = {**schema, **(choices[0] if choices else {})}
        if shown.get("default", ...) is None:
            del shown["default"]
        description = {"description": shown.pop("description")} if "description" in shown else {}
        style = {"style": "form", "explode": False} if shown.get("type") == "array" else {}
        parameters.append({"name": name, "in": "query", **description, **style, "schema": shown})
    return parameters


def _describe_id(name: str, title: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    description = f"The id of the {title}."
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
    }


def _describe_list(name: str, cursor: str) -> Schema:
    return close_schema(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
            "first_id": {"type": [cursor, "null"]},
            "last_id": {"type": [cursor, "null"]},
            "has_more": {"type": "boolean"},
        }
    )


def _describe_report() -> Schema:
    name, count = {"type": ["string", "null"]}, {"type": "integer", "minimum": 0}
    day = {"type": "string", "format": "date"}
    amounts = ("requests", "input_tokens", "output_tokens", "cost_cents", "cost_micros")
    names: dict[str, Schema] = {"day": day, "key_id": name, "model": name, "operation": name}
    row = close_schema({**names, **dict.fromkeys(amounts, count)}, optional=tuple(names))
    dimensions = {"type": "array", "items": {"enum": ["day", "key", "model", "operation"]}}
    return close_schema(
        {
            "object": {"const": "usage"},
            "start": day,
            "end": day,
            "group_by": dimensions,
            "data": {"type": "array", "items": row},
        }
    )
