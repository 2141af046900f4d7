"""Bodies of the routes of language models for `/openapi.json` (contract §7, §8).

Request schemas have what `gateway_core.llm.formats.requests` validates; all other fields are
forwarded. Answers are the provider's, so their schemas name what clients rely on, and allow more.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from gateway_apiserver.endpoints import Docs, HeaderDocs, Schema
from gateway_apiserver.surfaces.llm.models import LARGEST_PAGE, USUAL_PAGE
from gateway_apiserver.surfaces.llm.options import describe_options
from gateway_core.llm.formats.requests import MOST_CHOICES, MOST_LIMIT
from gateway_core.providers.catalog import Catalog
from gateway_core.tasks.operations import CHAT
from gateway_core.tasks.schemas import close_schema

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG = {"type": ["boolean", "null"]}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_OPENAI_ERRORS = ("CompatError",)
_GOOGLE_ERRORS = ("GoogleError",)


class ModelPage(BaseModel):
    """The query of a list in Google's dialect."""

    page_size: int = Field(USUAL_PAGE, alias="pageSize", ge=1, le=LARGEST_PAGE)
    page_token: str | None = Field(None, alias="pageToken", description="Of the page before.")


class StreamForm(BaseModel):
    """The query of a stream in Google's dialect."""

    alt: str | None = Field(None, description="sse: server-sent events; else one JSON array.")


def describe_chat(headers: Mapping[str, HeaderDocs]) -> Docs:
    """`POST /v1/chat/completions`."""
    choice = _open_schema({"index": _COUNT, "finish_reason": {"type": ["string", "null"]}})
    answer: dict[str, Schema] = {
        "id": _TEXT,
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": _TEXT,
        "choices": {"type": "array", "items": choice},
    }
    usage = ("prompt_tokens", "completion_tokens", "total_tokens")
    return _describe_call(
        "createChatCompletion",
        "Generate the next message of a chat",
        _describe_chat_body,
        _open_schema(answer, usage=_describe_usage(*usage)),
        event=_describe_event(
            "A chunk or, at last, an error as JSON; `[DONE]` ends a good stream."
        ),
        headers=headers,
    )


def describe_responses(headers: Mapping[str, HeaderDocs]) -> Docs:
    """`POST /v1/responses`."""
    answer: dict[str, Schema] = {
        "id": _TEXT,
        "object": {"const": "response"},
        "created_at": {"type": "number"},
        "model": _TEXT,
        "output": _OBJECTS,
    }
    usage = ("input_tokens", "output_tokens", "total_tokens")
    return _describe_call(
        "createResponse",
        "Generate a response",
        _describe_responses_body,
        _open_schema(answer, usage=_describe_usage(*usage)),
        event=_describe_event("Numbered from 0. An `error` ends a stream that fails.", event=_TEXT),
        headers=headers,
    )


def describe_generate(name: str, headers: Mapping[str, HeaderDocs], *, stream: bool) -> Docs:
    """`generateContent`, or `streamGenerateContent`, as the operation `name`."""
    answer = _open_schema(
        {"candidates": _OBJECTS, "modelVersion": _TEXT}, usageMetadata={"type": "object"}
    )
    return _describe_call(
        name,
        "Generate content" + (" as a stream" if stream else ""),
        _describe_generate_body,
        {"type": "array", "items": {"anyOf": [answer, {"type": "object"}]}} if stream else answer,
        event=_describe_event("A chunk or, at last, an error as JSON.") if stream else None,
        errors=_GOOGLE_ERRORS,
        query=StreamForm if stream else None,
        headers=headers,
    )


def describe_list(name: str, *, native: bool) -> Docs:
    """Return a list of models: Google's where `native`, else that of the credential's dialect."""
    openai = close_schema(
        {"object": {"const": "list"}, "data": {"type": "array", "items": _OPENAI_MODEL}}
    )
    google = close_schema(
        {"models": {"type": "array", "items": _GOOGLE_MODEL}, "nextPageToken": _TEXT},
        optional=("nextPageToken",),
    )
    if native:
        return Docs(name, "List models", google, query=ModelPage, errors=_GOOGLE_ERRORS)
    both: Schema = {"anyOf": [openai, google]}
    return Docs(name, "List models", both, errors=_OPENAI_ERRORS + _GOOGLE_ERRORS)


def describe_model(name: str, *, native: bool) -> Docs:
    """Return one model, in the dialect that `describe_list` says."""
    response: Schema = _GOOGLE_MODEL if native else {"anyOf": [_OPENAI_MODEL, _GOOGLE_MODEL]}
    errors = _GOOGLE_ERRORS if native else _OPENAI_ERRORS + _GOOGLE_ERRORS
    return Docs(name, "Show a model", response, errors=errors)


_OPENAI_MODEL = close_schema(
    {"id": _TEXT, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": _TEXT}
)
_GOOGLE_MODEL = close_schema(
    {
        "name": {"type": "string", "pattern": "^models/"},
        "displayName": _TEXT,
        "description": _TEXT,
        "version": _TEXT,
        "inputTokenLimit": _COUNT,
        "outputTokenLimit": _COUNT,
        "supportedGenerationMethods": {"type": "array", "items": _TEXT},
    }
)


def _describe_call(name: str, summary: str, body: Any, answer: Schema, **more: Any) -> Docs:
    more = {"errors": _OPENAI_ERRORS, "parameters": describe_options(), **more}
    return Docs(name, summary, answer, body=body, also=(402, 404, 409, 502, 504), **more)


def _describe_chat_body(catalog: Catalog) -> Schema | None:
    options = {"type": ["object", "null"], "properties": {"include_usage": _FLAG}}
    limits = ("max_tokens", "max_completion_tokens")
    return _describe_body(
        catalog,
        ("messages",),
        {
            "messages": {"type": "array", "minItems": 1},
            "stream": _FLAG,
            "stream_options": {**options, "description": "Only where `stream` is true."},
            **{limit: _describe_limit(MOST_LIMIT) for limit in limits},
            **{name: _describe_limit(MOST_CHOICES) for name in ("n", "best_of")},
        },
    )


def _describe_responses_body(catalog: Catalog) -> Schema | None:
    items = {"type": "array", "minItems": 1}
    unsupported = ("previous_response_id", "conversation", "prompt")
    return _describe_body(
        catalog,
        ("input",),
        {
            "input": {"anyOf": [{"type": "string"}, items]},
            "stream": _FLAG,
            "max_output_tokens": _describe_limit(MOST_LIMIT),
            "background": {"enum": [False, None]},
            **{name: {"type": "null"} for name in unsupported},
        },
    )


def _describe_generate_body(catalog: Catalog) -> Schema | None:
    limits = {"maxOutputTokens": MOST_LIMIT, "candidateCount": MOST_CHOICES}
    config = {name: _describe_limit(most) for name, most in limits.items()}
    content = {"type": "object", "properties": {"parts": _OBJECTS}}
    body = _describe_body(
        catalog,
        ("contents",),
        {
            "contents": {"type": "array", "minItems": 1, "items": content},
            "systemInstruction": {**content, "type": ["object", "null"]},
            "generationConfig": {"properties": config},
            "tools": {"type": ["array", "null"]},
            "cachedContent": {"type": "null"},
        },
    )
    if body is not None:
        # it is in the path
        body["required"].remove("model")
        del body["properties"]["model"]
    return body


def _describe_body(
    catalog: Catalog, required: tuple[str, ...], properties: dict[str, Schema]
) -> Schema | None:
    """Return a body for one of the present models; None where there are none."""
    models = {
        model_id
        for (_, action), found in catalog.models.items()
        if action == CHAT.action
        for model_id in found
    }
    if not models:
        return None
    model = {"type": "string", "enum": sorted(models)}
    return {
        "type": "object",
        "required": ["model", *required],
        "properties": {"model": model, **properties},
    }


def _describe_event(text: str, **more: Schema) -> Schema:
    return _open_schema({"data": {**_TEXT, "description": text}, **more})


def _describe_limit(most: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": 1, "maximum": most}


def _describe_usage(*names: str) -> Schema:
    return {**_open_schema(dict.fromkeys(names, _COUNT)), "type": ["object", "null"]}


def _open_schema(properties: dict[str, Schema], **optional: Schema) -> Schema:
    """Return an object with at least these properties."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": {**properties, **optional},
    }
