"""Answers of the OpenAPI document: their texts, schemas and headers. Pure."""

from typing import Any

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
    502: "The provider failed.",
    503: "The gateway cannot take this now.",
    504: "The task was not acknowledged in time; it may have been created.",
}


FREE_RATE_TEXT = "Too many calls in the last 60 seconds."
"""A 429 of a call that costs nothing (contract §12.1a)."""


def describe_refusal(
    status: int,
    headers: tuple[str, ...] = (),
    schemas: tuple[str, ...] = ("Error",),
    optional: tuple[str, ...] = (),
    text: str = "",
) -> dict[str, Any]:
    """A refusal with the headers that its status has; `text` in place of the usual one."""
    always = {401: ("WWW-Authenticate",), 409: ("x-should-retry",), 415: ("Accept",)}
    always[503] = ("Retry-After",)
    needed = (*headers, *always.get(status, ()))
    return describe_answer(text or _TEXTS[status], schemas, needed, optional)


def describe_answer(
    text: str,
    schemas: str | tuple[str, ...],
    headers: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> dict[str, Any]:
    """An answer of one schema, or of one of several."""
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


def describe_headers(task_id_header: str) -> dict[str, Any]:
    """All headers by name, and with `.optional` for answers that may lack them."""
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
        "Idempotent-Replayed": ("That an earlier call with the key did this.", text),
        task_id_header: ("The task that the answer concerns.", text),
    }
    headers: dict[str, Any] = {}
    for name, (description, schema) in described.items():
        headers[name] = {"description": description, "required": True, "schema": schema}
        headers[name + ".optional"] = {"description": description, "schema": schema}
    return headers
