"""The whole document: one pair of paths for each operation that some model serves. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway_apiserver.openapi.answers import (
    describe_answer,
    describe_headers,
    describe_refusal,
)
from gateway_apiserver.openapi.batches import describe_batch_shapes, describe_batches
from gateway_apiserver.openapi.compat import describe_error
from gateway_apiserver.openapi.files import describe_file_shapes, describe_files
from gateway_apiserver.openapi.management import describe_management, describe_shapes
from gateway_apiserver.openapi.moderations import describe_moderation, describe_moderation_shapes
from gateway_apiserver.openapi.quotes import describe_quote
from gateway_apiserver.openapi.schemas import (
    NOT_BLANK,
    TASK_ID_PATTERN,
    describe_body,
    describe_components,
    example_body,
)
from gateway_apiserver.openapi.temporary import (
    describe_temporary_files,
    describe_temporary_shapes,
)
from gateway_apiserver.openapi.uploads import describe_upload_shapes, describe_uploads
from gateway_apiserver.surfaces.account import ACCOUNT_PATH, BALANCE_PATH
from gateway_apiserver.surfaces.bodies import MOST_KEY_CHARACTERS
from gateway_apiserver.surfaces.pricing.routes import FILTERS, QUOTES_PATH, SCHEDULES_PATH
from gateway_core.api.batch import ACTION
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.tasks.operations import OPERATIONS, Operation

_RATE = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")


def build_document(
    catalog: Catalog,
    base_url: str,
    *,
    task_id_header: str,
    loopback_callbacks: bool,
    anonymous_prices: bool,
    default_moderation: bool = False,
) -> dict[str, Any]:
    """The OpenAPI 3.1 document of what can be called.

    `loopback_callbacks` is whether this deployment lets callbacks go to its own machine,
    `anonymous_prices` whether it tells prices to those without a key, `default_moderation` whether
    it has a model for moderations that name none.
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
        **describe_temporary_files(),
        **describe_management(),
        **describe_uploads(),
        **describe_files(),
        **describe_batches(),
    }
    served = (found for (_, action), found in catalog.models.items() if action == ACTION)
    judges = sorted({model for found in served for model in found})
    if judges:
        paths |= describe_moderation(judges, has_default=default_moderation)
    for (service, action), models in sorted(catalog.models.items()):
        path, suffix = f"/api/v1/{service}/{action}", f"{service}_{action}"
        operation = OPERATIONS[action]
        if not operation.makes_tasks:
            continue
        body = describe_body(operation, models, loopback_callbacks=loopback_callbacks)
        paths[path] = {"post": _describe_create(operation, models, suffix, body, task_id_header)}
        paths[path + "/{task_id}"] = {"get": _describe_task(suffix)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Model Gateway",
            "version": "v1",
            "description": "Asynchronous tasks of hosted AI models, and the keys that call them."
            " Errors are JSON objects.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "security": [{"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer"},
                "managementKey": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {
                **describe_components(),
                **describe_temporary_shapes(),
                **describe_shapes(),
                **describe_error(),
                **describe_upload_shapes(),
                **describe_file_shapes(),
                **describe_moderation_shapes(),
                **describe_batch_shapes(),
            },
            "headers": describe_headers(task_id_header),
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
    accepted = describe_answer("The task is accepted.", "TaskAccepted", (*_RATE, "Location"))
    accepted["links"] = {"task": read}
    responses = {"202": accepted}
    responses["401"] = describe_refusal(401)
    for status in (403, 503):
        responses[str(status)] = describe_refusal(status, optional=_RATE)
    for status in (402, 413, 415):
        responses[str(status)] = describe_refusal(status, _RATE)
    responses["400"] = describe_refusal(400, _RATE, ("Error", "FieldErrors"))
    responses["409"] = describe_refusal(409, _RATE, optional=(task_id_header,))
    responses["429"] = describe_refusal(429, optional=("Retry-After", "x-should-retry", *_RATE))
    responses["500"] = describe_refusal(500, optional=_RATE)
    responses["504"] = describe_refusal(504, (*_RATE, task_id_header))
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
            "200": describe_answer("The task as it is.", forms),
            **{str(status): describe_refusal(status) for status in (401, 403, 404, 500, 503)},
        },
    }


def _describe_read(operation_id: str, summary: str, schema: str) -> dict[str, Any]:
    return {
        "operationId": operation_id,
        "summary": summary,
        "responses": {
            "200": describe_answer(summary + ".", schema),
            **{str(status): describe_refusal(status) for status in (401, 403, 500, 503)},
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
    described["responses"]["400"] = describe_refusal(400, schemas=("Error", "FieldErrors"))
    return described


def _describe_quotes(body: dict[str, Any]) -> dict[str, Any]:
    described = _describe_read("quotePrice", "What a call would reserve", "PriceQuote")
    described["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": body}},
    }
    for status in (404, 409, 413, 415):
        described["responses"][str(status)] = describe_refusal(status)
    described["responses"]["400"] = describe_refusal(400, schemas=("Error", "FieldErrors"))
    return described
