"""What the surfaces below `/v1` have in common in the document: errors of the OpenAI form. Pure."""

from collections.abc import Iterable
from typing import Any

from gateway_apiserver.openapi.answers import FREE_RATE_TEXT, describe_answer, describe_refusal
from gateway_apiserver.openapi.schemas import NOT_BLANK, Schema, close_schema
from gateway_apiserver.surfaces.bodies import MOST_KEY_CHARACTERS

ERROR = "CompatError"
RATE = ("X-RateLimit-Limit-RPM", "X-RateLimit-Remaining-RPM", "X-RateLimit-Reset")
_TEXTS = {
    409: "What is there rules this out, or the Idempotency-Key stands for other input.",
    429: "Too many paid calls, a credit limit is exceeded, or the model's provider is sent more"
    " calls than it takes.",
    502: "The model's provider failed.",
    504: "Not answered in time.",
}


def describe_error() -> dict[str, Schema]:
    """The schema of every error."""
    text = {"type": "string", "minLength": 1}
    inner = close_schema(
        {"message": text, "type": text, "param": {"type": ["string", "null"]}, "code": text}
    )
    return {ERROR: close_schema({"error": inner})}


def describe_operation(
    operation_id: str,
    summary: str,
    schema: str,
    refusals: Iterable[int],
    *,
    body: Schema | None = None,
    paid: bool = False,
    headers: tuple[str, ...] = (),
) -> dict[str, Any]:
    """An operation that answers 200; `paid` ones have the rate headers."""
    rate = RATE if paid else ()
    responses = {"200": describe_answer(f"{summary}.", schema, rate, headers)}
    for status in refusals:
        needed: tuple[str, ...] = ()
        optional, text = tuple(rate), _TEXTS.get(status, "")
        if status == 429 and paid:
            optional = ("Retry-After", "x-should-retry", *rate)
        elif status == 429:
            needed, text = ("Retry-After",), FREE_RATE_TEXT
        responses[str(status)] = describe_refusal(
            status, needed, schemas=(ERROR,), optional=optional, text=text
        )
    described: dict[str, Any] = {
        "operationId": operation_id,
        "summary": summary,
        "responses": dict(sorted(responses.items())),
    }
    if body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    return described


def describe_key(made: str) -> dict[str, Any]:
    """The header `Idempotency-Key`; `made` is what is made once by it (§2.2)."""
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
