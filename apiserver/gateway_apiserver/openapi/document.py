"""The whole document: one pair of paths for each operation that some model serves. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway_apiserver.calls import MOST_KEY_CHARACTERS
from gateway_apiserver.openapi.schemas import (
    NOT_BLANK,
    TASK_ID_PATTERN,
    describe_body,
    describe_components,
    describe_quote,
    example_body,
)
from gateway_apiserver.routes.account import ACCOUNT_PATH, BALANCE_PATH
from gateway_apiserver.routes.pricing import FILTERS, QUOTES_PATH, SCHEDULES_PATH
from gateway_core.domain.catalog import Catalog, Model
from gateway_core.domain.operations import OPERATIONS, Operation

_RATE = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")
_TEXTS = {
    400: "The request is invalid.",
    401: "The API key is missing, malformed, revoked or invalid.",
    402: "The balance does not cover the call.",
    403: "The key is good, and its class or role may not do this, or not with this model.",
    404: "Unknown, or of another account.",
    409: "The model does not support what is asked, or the Idempotency-Key stands for other input.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many paid calls, or a credit limit is exceeded.",
    500: "A defect of the gateway.",
    503: "The gateway cannot take this now.",
    504: "The task was not acknowledged in time; it may have been created.",
}


def build_document(
    catalog: Catalog,
    base_url: str,
    *,
    task_id_header: str,
    loopback_callbacks: bool,
    anonymous_prices: bool,
) -> dict[str, Any]:
    """The OpenAPI 3.1 document of what can be called.

    `loopback_callbacks` is whether this deployment lets callbacks go to its own machine,
    `anonymous_prices` whether it tells prices to those without a key.
    """
    quote = describe_quote(catalog.models, loopback_callbacks=loopback_callbacks)
    prices = {
        SCHEDULES_PATH: {"get": _describe_schedules()},
        QUOTES_PATH: {"post": _describe_quotes(quote)},
    }
    if anonymous_prices:
        for methods in prices.values():
            for operation_object in methods.values():
                operation_object["security"] = [{}, {"apiKey": []}]
    paths: dict[str, Any] = {
        ACCOUNT_PATH: {"get": _describe_read("showMe", "Whose key it is", "Me")},
        BALANCE_PATH: {
            "get": _describe_read("showBalance", "What is left of the money", "Balance")
        },
        **prices,
    }
    for (service, action), models in sorted(catalog.models.items()):
        path, suffix = f"/api/v1/{service}/{action}", f"{service}_{action}"
        operation = OPERATIONS[action]
        body = describe_body(operation, models, loopback_callbacks=loopback_callbacks)
        paths[path] = {"post": _describe_create(operation, models, suffix, body, task_id_header)}
        paths[path + "/{task_id}"] = {"get": _describe_task(suffix)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Model Gateway",
            "version": "v1",
            "description": "Asynchronous tasks of hosted AI models. Errors are JSON objects.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
            "schemas": describe_components(),
            "headers": _describe_headers(task_id_header),
        },
    }


def _describe_create(
    operation: Operation,
    models: Mapping[str, Model],
    suffix: str,
    body: dict[str, Any],
    task_id_header: str,
) -> dict[str, Any]:
    read = {"operationId": f"show_{suffix}", "parameters": {"task_id": "$response.body#/id"}}
    accepted = _answer("The task is accepted.", "TaskAccepted", (*_RATE, "Location"))
    accepted["links"] = {"task": read}
    responses = {"202": accepted}
    responses["401"] = _refusal(401)
    for status in (403, 503):
        responses[str(status)] = _refusal(status, optional=_RATE)
    for status in (402, 413, 415):
        responses[str(status)] = _refusal(status, _RATE)
    responses["400"] = _refusal(400, _RATE, ("Error", "FieldErrors"))
    responses["409"] = _refusal(409, _RATE, optional=(task_id_header,))
    responses["429"] = _refusal(429, optional=("Retry-After", "x-should-retry", *_RATE))
    responses["500"] = _refusal(500, optional=_RATE)
    responses["504"] = _refusal(504, (*_RATE, task_id_header))
    return {
        "operationId": f"create_{suffix}",
        "summary": operation.summary,
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "Names the call: repeated, it is answered with the same task.",
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MOST_KEY_CHARACTERS,
                    "pattern": NOT_BLANK,
                },
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": body, "example": example_body(operation, models)}
            },
        },
        "responses": dict(sorted(responses.items())),
    }


def _describe_task(suffix: str) -> dict[str, Any]:
    forms = ("TaskProcessing", "TaskCompleted", "TaskFailed")
    return {
        "operationId": f"show_{suffix}",
        "summary": "What a task has come to",
        "parameters": [
            {
                "name": "task_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": TASK_ID_PATTERN},
            }
        ],
        "responses": {
            "200": _answer("The task as it is.", forms),
            **{str(status): _refusal(status) for status in (401, 403, 404, 500, 503)},
        },
    }


def _describe_read(operation_id: str, summary: str, schema: str) -> dict[str, Any]:
    return {
        "operationId": operation_id,
        "summary": summary,
        "responses": {
            "200": _answer(summary + ".", schema),
            **{str(status): _refusal(status) for status in (401, 403, 500, 503)},
        },
    }


def _describe_schedules() -> dict[str, Any]:
    described = _describe_read("listPrices", "What each model costs now", "PriceList")
    described["parameters"] = [
        {
            "name": name,
            "in": "query",
            "description": f"Shows only the prices of this {name}.",
            "schema": {"type": "string"},
        }
        for name in FILTERS
    ]
    described["responses"]["400"] = _refusal(400, schemas=("Error", "FieldErrors"))
    return described


def _describe_quotes(body: dict[str, Any]) -> dict[str, Any]:
    described = _describe_read("quotePrice", "What a call would reserve", "PriceQuote")
    described["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": body}},
    }
    for status in (404, 409, 413, 415):
        described["responses"][str(status)] = _refusal(status)
    described["responses"]["400"] = _refusal(400, schemas=("Error", "FieldErrors"))
    return described


def _refusal(
    status: int,
    headers: tuple[str, ...] = (),
    schemas: tuple[str, ...] = ("Error",),
    optional: tuple[str, ...] = (),
) -> dict[str, Any]:
    always = {401: ("WWW-Authenticate",), 409: ("x-should-retry",), 415: ("Accept",)}
    always[503] = ("Retry-After",)
    needed = (*headers, *always.get(status, ()))
    return _answer(_TEXTS[status], schemas, needed, optional)


def _answer(
    text: str,
    schemas: str | tuple[str, ...],
    headers: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> dict[str, Any]:
    names = (schemas,) if isinstance(schemas, str) else schemas
    references = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    shown: dict[str, Any] = {}
    for name in ("X-Request-Id", *headers):
        shown[name] = {"$ref": f"#/components/headers/{name}"}
    for name in optional:
        shown[name] = {"$ref": f"#/components/headers/{name}.optional"}
    schema = references[0] if len(references) == 1 else {"oneOf": references}
    return {
        "description": text,
        "headers": shown,
        "content": {"application/json": {"schema": schema}},
    }


def _describe_headers(task_id_header: str) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 0}
    text = {"type": "string"}
    described = {
        "X-Request-Id": ("Names this answer to the gateway's operators.", text),
        "X-RateLimit-Limit-RPM": ("Paid calls in any trailing 60 seconds.", number),
        "X-RateLimit-Remaining-RPM": ("Calls left after this one.", number),
        "X-RateLimit-Reset": ("Unix seconds at which a counted call leaves the window.", number),
        "Retry-After": ("Seconds to wait.", number),
        "Location": ("Where the task is shown.", text),
        "WWW-Authenticate": ("The scheme of the credential.", text),
        "Accept": ("The type that is read.", text),
        "x-should-retry": ("That trying again does not help.", text),
        task_id_header: ("The task that the answer concerns.", text),
    }
    headers: dict[str, Any] = {}
    for name, (description, schema) in described.items():
        headers[name] = {"description": description, "required": True, "schema": schema}
        headers[name + ".optional"] = {"description": description, "schema": schema}
    return headers
