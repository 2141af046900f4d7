"""What price quotes are asked with, in the document. Pure."""

from collections.abc import Mapping

from gateway_apiserver.openapi.moderations import describe_moderation_body
from gateway_apiserver.openapi.schemas import Schema, close_schema, describe_body
from gateway_core.providers.catalog import Model
from gateway_core.tasks.operations import OPERATIONS


def describe_quote(
    served: Mapping[tuple[str, str], Mapping[str, Model]], *, loopback_callbacks: bool
) -> Schema:
    """The request body of price quotes: one form for each path that some model serves."""
    forms = []
    for (service, action), models in sorted(served.items()):
        if not OPERATIONS[action].makes_tasks:
            # the body of another dialect, which has more that is ignored
            body = describe_moderation_body(models)
            forms.append(_describe_quote_form(service, action, models, body))
            continue
        params = describe_body(OPERATIONS[action], models, loopback_callbacks=loopback_callbacks)
        params["required"] = [name for name in params["required"] if name != "model"]
        params["properties"]["model"]["type"] = ["string", "null"]
        params["properties"]["model"]["enum"] = [*models, None]
        forms.append(_describe_quote_form(service, action, models, params))
    return {"oneOf": forms} if forms else {"type": "object"}


def _describe_quote_form(
    service: str, action: str, models: Mapping[str, Model], params: Schema
) -> Schema:
    return close_schema(
        {
            "service": {"type": "string", "const": service},
            "action": {"type": "string", "const": action},
            "model": {"type": ["string", "null"], "enum": [*models, None]},
            "params": {
                "anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}, params],
                "description": "The body of the call, with or without its model.",
            },
        },
        optional=("model", "params"),
    )
