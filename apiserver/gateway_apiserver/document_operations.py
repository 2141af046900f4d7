"""Operations of the OpenAPI document, with what their requirements imply.

The refusals, headers and security of an operation follow from what it requires of its caller.
"""

from collections.abc import Iterable
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway_apiserver.access import get_idempotency_key
from gateway_apiserver.document_schemas import (
    inline_schema,
    list_properties,
)
from gateway_apiserver.endpoints import Body, CallRoute, Docs, Schema
from gateway_apiserver.surfaces.validation import MOST_KEY_CHARACTERS
from gateway_core.admission.admission import Access
from gateway_core.providers.catalog import Catalog
from gateway_core.tasks.schemas import NOT_BLANK

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


def describe_operation(
    path: str,
    operation: CallRoute,
    docs: Docs,
    catalog: Catalog,
    components: dict[str, Schema],
    task_id_header: str,
) -> dict[str, Any] | None:
    """Return the operation of an ASGI endpoint; None where it cannot be called now."""
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
    """Return the components of an error, where an operation names none."""
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
    """Return the names of a response's schemas, which stand under `components`."""
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
    """Return a response of one schema, or of one of several."""
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


def _describe_key(made: str) -> dict[str, Any]:
    """Return the header `Idempotency-Key` (§2.2)."""
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
