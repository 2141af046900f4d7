"""The OpenAPI 3.1 document of the application and its catalog.

FastAPI describes the functions of `routers` by their types. This module adds what follows from what
an operation requires of its caller (refusals, headers, security), and the ASGI endpoints.
"""

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway_apiserver.access import get_idempotency_key
from gateway_apiserver.endpoints import Body, CallRoute, Docs, HeaderDocs, Schema
from gateway_apiserver.surfaces.models import ANY_ID
from gateway_apiserver.surfaces.validation import MOST_KEY_CHARACTERS
from gateway_core.admission.admission import Access
from gateway_core.api.ids import TASK_PREFIX
from gateway_core.api.model import ANY_MODEL_ID
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.catalog_view import CatalogView
from gateway_core.tasks.schemas import NOT_BLANK, close_schema

RATE_HEADERS = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")
_TEXTS = {
    400: "The request is invalid.",
    401: "The API key is missing, malformed, revoked or invalid.",
    402: "The balance does not cover the call.",
    403: "The key is good, and its class or role may not do this, or not with this model.",
    404: "Unknown, or of another account.",
    409: "What exists rules this out, or the Idempotency-Key stands for other input.",
    413: "The body is too large, or the account's storage does not hold it.",
    415: "The body is not of the type that is read.",
    416: "The range lies beyond the end of the file.",
    429: "Too many calls in the last 60 seconds, or a credit limit is exceeded.",
    500: "A defect of the gateway.",
    502: "The provider failed.",
    503: "The gateway cannot take this now.",
    504: "Not acknowledged in time; the change may have been made.",
}
_HEADERS_OF = {
    401: ("WWW-Authenticate",),
    409: ("x-should-retry",),
    415: ("Accept",),
    503: ("Retry-After",),
}
_RATED = (400, 402, 409, 413, 415, 504)
"""Refusals of paid calls that have rate headers always: none comes before the rate (§12.2)."""
_PATTERNS = {
    "task_id": f"^{TASK_PREFIX}_[a-z0-9-]{{1,57}}$",
    # a slash in it would be another path
    "file_id": ANY_ID,
    "upload_id": ANY_ID,
    "batch_id": "^batch_[a-z0-9-]{1,57}$",
    "model_id": ANY_MODEL_ID,
}
_SCHEMAS = "#/components/schemas/"
_PARAMETER = re.compile(r"\{(\w+)\}")


class ApiDocument:
    """The document of what can be called now, built once for each catalog.

    `bodies` describe the bodies of functions, by operation id, that depend on the catalog.
    """

    def __init__(
        self,
        app: FastAPI,
        catalog: CatalogView,
        base_url: str,
        *,
        task_id_header: str,
        permits_anonymous: bool,
        bodies: Mapping[str, Callable[[Catalog], Schema]],
    ) -> None:
        self._app = app
        self._catalog = catalog
        self._base_url = base_url
        self._task_id_header = task_id_header
        self._permits_anonymous = permits_anonymous
        self._bodies = bodies
        self._of_functions: dict[str, Any] | None = None
        self._known: tuple[Catalog, bytes] | None = None

    def read(self) -> bytes:
        """The document of the present catalog as JSON."""
        current = self._catalog.current
        if self._known is None or self._known[0] is not current:
            # building takes tens of milliseconds, and needs no key to request
            self._known = current, orjson.dumps(self.build(current))
        return self._known[1]

    def build(self, catalog: Catalog) -> dict[str, Any]:
        """The document of a catalog."""
        if self._of_functions is None:
            self._of_functions = self._describe_functions()
        document = copy.deepcopy(self._of_functions)
        components: dict[str, Schema] = document["components"]["schemas"]
        paths: dict[str, Any] = document["paths"]
        for item in paths.values():
            for operation in item.values():
                describe = self._bodies.get(operation["operationId"])
                if describe is not None:
                    operation["requestBody"]["content"]["application/json"] = {
                        "schema": describe(catalog)
                    }
        headers: dict[str, HeaderDocs] = {}
        for route in self._app.routes:
            if not isinstance(route, CallRoute):
                continue
            for path, docs in route.describe(catalog):
                described = _describe_operation(
                    path, route, docs, catalog, components, self._task_id_header
                )
                if described is None:
                    continue
                headers |= docs.headers
                paths.setdefault(path, {})[route.method.lower()] = described
        for path, item in paths.items():
            for operation in item.values():
                if not self._permits_anonymous and {} in operation.get("security", ()):
                    del operation["security"]
            names = _PARAMETER.findall(path)
            if names:
                item["parameters"] = [_describe_path_parameter(name) for name in names]
        document["paths"] = dict(sorted(paths.items()))
        document["security"] = [{"apiKey": []}]
        document["components"] = {
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer"},
                "managementKey": {"type": "http", "scheme": "bearer"},
            },
            "schemas": dict(sorted(components.items())),
            "headers": _describe_headers(self._task_id_header, headers),
        }
        return document

    def _describe_functions(self) -> dict[str, Any]:
        """Return FastAPI's description of the functions of `routers`, the same for all catalogs."""
        document = get_openapi(
            title="Model Gateway",
            version="v1",
            description="Asynchronous tasks of hosted AI models, and the keys that call them."
            " Errors are JSON objects.",
            license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
            servers=[{"url": self._base_url}],
            routes=self._app.routes,
        )
        components: dict[str, Schema] = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            components.pop(name, None)
        components |= _describe_errors()
        for item in document["paths"].values():
            for operation in item.values():
                _tidy_operation(operation)
                _close_shapes(operation["responses"], components)
        named: dict[str, Any] = _tidy_text(document)
        return named


_WARNED = ("createKey", "changeKey", "createGuardrail", "changeGuardrail")
"""Operations that warn of names which nothing has."""


def describe_function(route: APIRoute) -> tuple[dict[int | str, Any], Schema]:
    """Describe what follows from the requirements of a route that is a function.

    The responses beside those of its decorator, and further members of its operation.
    """
    access: Access | None = getattr(route.endpoint, "access", None)
    is_repeatable = any(
        dependency.call is get_idempotency_key for dependency in route.dependant.dependencies
    )
    reads_query = bool(route.dependant.query_params)
    has_cursor = any("after" in list_properties(field) for field in route.dependant.query_params)
    also = {int(status) for status in route.responses}
    statuses = _list_refusals(
        route.path_format,
        access,
        also,
        reads_body=route.body_field is not None,
        reads_query=reads_query,
        has_cursor=has_cursor,
        is_repeatable=is_repeatable,
    )
    status = route.status_code or 200
    warns = ("Warning",) if route.operation_id in _WARNED else ()
    optional = (*(("Idempotent-Replayed",) if is_repeatable else ()), *warns)
    responses: dict[int | str, Any] = {
        status: {"description": f"{route.summary}.", "headers": _refer_headers((), optional)}
    }
    for refused in statuses:
        rate = ("Retry-After",) if refused == 429 else ()
        needed = (*_HEADERS_OF.get(refused, ()), *rate)
        errors = _find_errors(route.path_format, refused)
        responses[refused] = _describe_response(_TEXTS[refused], errors, needed)
    more: Schema = _describe_security(access)
    if is_repeatable:
        more["parameters"] = [_describe_key("response")]
    return responses, more


def list_properties(field: Any) -> Mapping[str, Schema]:
    """The parameters of a query by name, with their schemas."""
    model = field.field_info.annotation
    properties: Mapping[str, Schema] = model.model_json_schema()["properties"]
    return properties


def _tidy_operation(operation: dict[str, Any]) -> None:
    """Drop what FastAPI says of errors that are answered otherwise, and of absent parameters."""
    operation["responses"].pop("422", None)
    operation["responses"] = dict(sorted(operation["responses"].items()))
    kept = []
    for parameter in operation.pop("parameters", ()):
        if parameter["in"] == "path":
            continue
        schema = parameter["schema"]
        choices = [part for part in schema.pop("anyOf", ()) if part.get("type") != "null"]
        schema |= choices[0] if choices else {}
        schema.pop("title", None)
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        if schema.get("default", ...) is None:
            del schema["default"]
        if schema.get("type") == "array":
            parameter |= {"style": "form", "explode": False}
        kept.append(parameter)
    if kept:
        operation["parameters"] = kept


def _close_shapes(node: Any, components: Mapping[str, Schema]) -> None:
    """Let the objects that responses consist of have no more fields than are described."""
    if isinstance(node, list):
        for item in node:
            _close_shapes(item, components)
    elif isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        reference = node.get("$ref", "")
        if reference.startswith(_SCHEMAS):
            referred = components[reference.removeprefix(_SCHEMAS)]
            if "additionalProperties" not in referred:
                _close_shapes(referred, components)
        for value in node.values():
            _close_shapes(value, components)


def _tidy_text(node: Any) -> Any:
    """The same with the names that clients know, and bounds of integers as integers."""
    text = re.sub(rb"\bPage_(\w+?)_(?=\")", rb"\1List", orjson.dumps(node))
    text = re.sub(rb"\bUsageReport(?=\")", b"ReportUsage", text)
    # FastAPI has a float for each bound
    return orjson.loads(re.sub(rb'("(?:minimum|maximum)":-?\d+)\.0\b', rb"\1", text))


def _describe_operation(
    path: str,
    operation: CallRoute,
    docs: Docs,
    catalog: Catalog,
    components: dict[str, Schema],
    task_id_header: str,
) -> dict[str, Any] | None:
    """The operation object; None where it cannot be called now."""
    body = _resolve_body(docs.body, catalog)
    if body is None and docs.body is not None:
        return None
    parameters = [] if docs.query is None else _describe_query(docs.query)
    if docs.makes:
        parameters.append(_describe_key(docs.makes))
    parameters += docs.parameters
    described: dict[str, Any] = {
        "operationId": docs.name,
        "summary": docs.summary,
        "responses": _describe_responses(path, operation, docs, components, task_id_header),
    }
    if parameters:
        described["parameters"] = parameters
    if body is not None:
        content: dict[str, Any] = {"schema": body}
        if docs.example is not None:
            content["example"] = docs.example
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": content},
        }
    elif docs.form is not None:
        content = {"multipart/form-data": {"schema": docs.form}}
        described["requestBody"] = {"required": True, "content": content}
    return described | _describe_security(operation.access)


def _describe_security(access: Access | None) -> Schema:
    if access is not None and access.rate == "management":
        return {"security": [{"managementKey": []}]}
    if access is not None and access.anonymous:
        return {"security": [{}, {"apiKey": []}]}
    return {}


def _resolve_body(body: Body | None, catalog: Catalog) -> Schema | None:
    if body is None or isinstance(body, dict):
        return body
    if isinstance(body, type):
        return inline_schema(cast(type[BaseModel], body).model_json_schema())
    return body(catalog)


def _describe_responses(
    path: str,
    operation: CallRoute,
    docs: Docs,
    components: dict[str, Schema],
    task_id_header: str,
) -> dict[str, Any]:
    rate = RATE_HEADERS if operation.paid else ()
    responses: dict[str, Any] = {}
    if docs.response is not None:
        name = _add_component(docs.name, docs.response, components)
        needed = (*rate, *(("Location",) if docs.status == 202 else ()))
        # a task says so in its body: `task_replayed`
        replayed = ("Idempotent-Replayed",) if docs.makes and docs.status != 202 else ()
        described = _describe_response(docs.summary + ".", name, needed, (*replayed, *docs.headers))
        if docs.event is not None:
            described["content"]["text/event-stream"] = {"schema": docs.event}
        responses[str(docs.status)] = described
    makes_task = docs.status == 202
    statuses = _list_refusals(
        path,
        operation.access,
        docs.also,
        is_paid=operation.paid,
        reads_body=docs.body is not None or docs.form is not None,
        reads_query=docs.query is not None,
        is_repeatable=bool(docs.makes),
    )
    for status in statuses:
        needed, optional = _HEADERS_OF.get(status, ()), tuple[str, ...]()
        if status == 429 and not operation.paid:
            needed = ("Retry-After",)
        elif status == 429:
            optional = ("Retry-After", "x-should-retry", *rate)
        elif status in _RATED:
            needed = (*needed, *rate)
        elif status != 401:
            optional = rate
        if makes_task and status == 504:
            needed = (*needed, task_id_header)
        elif makes_task and status == 409:
            optional = (task_id_header,)
        errors = docs.errors or _find_errors(path, status)
        responses[str(status)] = _describe_response(_TEXTS[status], errors, needed, optional)
    for status_text, changes in docs.responses.items():
        responses[status_text] = {**responses.get(status_text, {}), **changes}
    return dict(sorted(responses.items()))


def _find_errors(path: str, status: int) -> tuple[str, ...]:
    """The components of an error, where an operation names none."""
    if path.startswith("/v1/"):
        return ("CompatError",)
    return ("Error", "FieldErrors") if status == 400 else ("Error",)


def _list_refusals(
    path: str,
    access: Access | None,
    also: Iterable[int],
    *,
    is_paid: bool = False,
    reads_body: bool,
    reads_query: bool,
    has_cursor: bool = False,
    is_repeatable: bool,
) -> list[int]:
    """Error statuses of an operation: implied by its requirements, and named by it (`also`)."""
    statuses = {401, 403, 500, 503, *also}
    if reads_body or reads_query or is_repeatable:
        statuses.add(400)
    if reads_body:
        statuses |= {413, 415}
    if "{" in path or has_cursor:
        statuses.add(404)
    if is_repeatable:
        # another call's Idempotency-Key, and a create that was not acknowledged
        statuses |= {409, 504}
    if is_paid or (access is not None and access.rate is not None):
        statuses.add(429)
    return sorted(statuses)


def _add_component(
    operation: str, response: type[BaseModel] | Schema, components: dict[str, Schema]
) -> tuple[str, ...]:
    """The names of a response's schemas, which stand under `components`."""
    if isinstance(response, dict):
        if "oneOf" in response:
            return tuple(response["oneOf"])
        name, schema = operation[0].upper() + operation[1:], response
    else:
        name = response.__name__
        schema = inline_schema(response.model_json_schema(mode="serialization"), closed=True)
    components[name] = schema
    return (name,)


def _describe_response(
    text: str,
    schemas: tuple[str, ...],
    headers: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A response of one schema, or of one of several."""
    references = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    schema = references[0] if len(references) == 1 else {"oneOf": references}
    return {
        "description": text,
        "headers": _refer_headers(headers, optional),
        "content": {"application/json": {"schema": schema}},
    }


def _refer_headers(needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    shown = {name: f"#/components/headers/{name}" for name in ("X-Request-Id", *needed)}
    shown |= {name: f"#/components/headers/{name}.optional" for name in optional}
    return {name: {"$ref": reference} for name, reference in shown.items()}


def _describe_query(query: type[BaseModel]) -> list[dict[str, Any]]:
    parameters = []
    for name, schema in inline_schema(query.model_json_schema())["properties"].items():
        choices = [part for part in schema.pop("anyOf", []) if part.get("type") != "null"]
        shown = {**schema, **(choices[0] if choices else {})}
        if shown.get("default", ...) is None:
            del shown["default"]
        description = {"description": shown.pop("description")} if "description" in shown else {}
        parameters.append({"name": name, "in": "query", **description, "schema": shown})
    return parameters


def _describe_path_parameter(name: str) -> dict[str, Any]:
    pattern = _PATTERNS.get(name)
    schema = {"type": "string", "minLength": 1} if pattern is None else {"type": "string"}
    if pattern is not None:
        schema["pattern"] = pattern
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _describe_key(made: str) -> dict[str, Any]:
    """The header `Idempotency-Key` (§2.2)."""
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "description": f"Names the call: repeated, it is answered with the same {made}.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MOST_KEY_CHARACTERS,
            "pattern": NOT_BLANK,
        },
    }


def _describe_errors() -> dict[str, Schema]:
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
    """A task's representations, which take no other property (contract §2.3)."""
    text = {"type": "string", "minLength": 1}
    task_id = {"type": "string", "pattern": _PATTERNS["task_id"]}
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


def _describe_headers(task_id_header: str, more: Mapping[str, HeaderDocs]) -> dict[str, Any]:
    """All headers by name, and with `.optional` for responses that may lack them."""
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
    """A pydantic schema without definitions of its own; `closed`: objects have no more fields."""
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
