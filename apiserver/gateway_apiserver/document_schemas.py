"""Schemas and headers of the OpenAPI document that operations refer to."""

from collections.abc import Mapping
from typing import Any

from gateway_apiserver.endpoints import HeaderDocs, Schema
from gateway_apiserver.surfaces.models import ANY_ID
from gateway_core.api.ids import TASK_PREFIX
from gateway_core.api.model import ANY_MODEL_ID
from gateway_core.tasks.schemas import close_schema

PATTERNS = {
    "task_id": f"^{TASK_PREFIX}_[a-z0-9-]{{1,57}}$",
    # a slash in it would be another path
    "file_id": ANY_ID,
    "upload_id": ANY_ID,
    "batch_id": "^batch_[a-z0-9-]{1,57}$",
    "model_id": ANY_MODEL_ID,
}
_SCHEMAS = "#/components/schemas/"


def list_properties(field: Any) -> Mapping[str, Schema]:
    """Return the parameters of a query by name, with their schemas."""
    model = field.field_info.annotation
    properties: Mapping[str, Schema] = model.model_json_schema()["properties"]
    return properties


def close_shapes(node: Any, components: Mapping[str, Schema]) -> None:
    """Let the objects that responses consist of have no more fields than are described."""
    if isinstance(node, list):
        for item in node:
            close_shapes(item, components)
    elif isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        reference = node.get("$ref", "")
        if reference.startswith(_SCHEMAS):
            referred = components[reference.removeprefix(_SCHEMAS)]
            if "additionalProperties" not in referred:
                close_shapes(referred, components)
        for value in node.values():
            close_shapes(value, components)


def describe_errors() -> dict[str, Schema]:
    """Return the components of errors in each form, and of tasks."""
    text = {"type": "string", "minLength": 1}
    problems = {"type": "array", "items": text, "minItems": 1}
    inner = close_schema(
        {"message": text, "type": text, "param": {"type": ["string", "null"]}, "code": text}
    )
    status = {"type": "integer", "minimum": 400, "maximum": 599}
    details = {"type": "array", "items": {"type": "object"}}
    native = close_schema({"code": status, "message": text, "status": text, "details": details})
    return {
        "Error": close_schema({"error": text}),
        "FieldErrors": close_schema(
            {"error": text, "errors": {"type": "object", "additionalProperties": problems}}
        ),
        "CompatError": close_schema({"error": inner}),
        "GoogleError": close_schema({"error": native}),
        **_describe_tasks(),
    }


def _describe_tasks() -> dict[str, Schema]:
    """Return a task's representations, which take no other property (contract §2.3)."""
    text = {"type": "string", "minLength": 1}
    task_id = {"type": "string", "pattern": PATTERNS["task_id"]}
    video = close_schema({"url": {"type": "string", "format": "uri"}})
    cost = {"type": "number", "minimum": 0, "description": "US dollars."}
    ended = {
        "videos": {"type": "array", "items": video},
        "usage": close_schema({"cost": cost}),
    }
    processing = {"id": task_id, "status": {"const": "processing"}}
    return {
        "TaskAccepted": close_schema(
            {**processing, "task_replayed": {"const": True}}, optional=("task_replayed",)
        ),
        "TaskProcessing": close_schema(processing),
        "TaskCompleted": close_schema({"id": task_id, "status": {"const": "completed"}, **ended}),
        "TaskFailed": close_schema({"id": task_id, "status": {"const": "failed"}, "error": text}),
    }


def describe_headers(task_id_header: str, more: Mapping[str, HeaderDocs]) -> dict[str, Any]:
    """Return all headers by name, and with `.optional` for responses that may lack them."""
    number, text = {"type": "integer", "minimum": 0}, {"type": "string"}
    described = {
        "X-Request-Id": ("Names this response to the gateway's operators.", text),
        "X-RateLimit-Limit-RPM": ("Paid calls in any trailing 60 seconds.", number),
        "X-RateLimit-Remaining-RPM": ("Calls left after this one.", number),
        "X-RateLimit-Reset": ("Unix seconds at which a counted call leaves the window.", number),
        "Retry-After": ("Seconds to wait.", number),
        "Location": ("Where the task is shown.", text),
        "WWW-Authenticate": ("The scheme of the credential.", text),
        "Accept": ("The type that is read.", text),
        "x-should-retry": ("That trying again does not help.", text),
        "Warning": ("What the object names and the gateway does not have.", text),
        "Idempotent-Replayed": ("That an earlier call with the key did this.", text),
        task_id_header: ("The task that the response concerns.", text),
        **{name: (of.description, of.schema) for name, of in more.items()},
    }
    headers: dict[str, Any] = {}
    for name, (description, schema) in described.items():
        headers[name] = {"description": description, "required": True, "schema": schema}
        headers[name + ".optional"] = {"description": description, "schema": schema}
    return headers


def inline_schema(schema: Schema, *, closed: bool = False) -> Schema:
    """Return a pydantic schema without definitions; `closed`: objects have no more fields."""
    definitions = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, list):
            return [resolve(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            siblings = {key: value for key, value in node.items() if key != "$ref"}
            return resolve({**definitions[node["$ref"].rpartition("/")[2]], **siblings})
        # a title that is a schema is a property of that name
        node = {k: resolve(v) for k, v in node.items() if k != "title" or isinstance(v, dict)}
        is_object = closed and node.get("type") == "object"
        return {"additionalProperties": False, **node} if is_object else node

    resolved: Schema = resolve(schema)
    return resolved
