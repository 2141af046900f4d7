"""Answers that are no streams, of a provider that speaks the client's format (§7.2, §7.3, §8.4)."""

from typing import Any

import orjson

from gateway_core.llm.formats.calls import Format, InvalidAnswer, LlmCall, TokenUsage, as_objects
from gateway_core.llm.formats.usage import (
    estimate_usage,
    fill_responses_usage,
    hide_failure,
    measure_answer,
    read_chat_usage,
    read_google_usage,
    read_responses_usage,
)

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
"""Values of `finish_reason` that the SDK accepts in strict mode (§7.2)."""

_REQUIRED = {Format.CHAT: "choices", Format.RESPONSES: "output"}


def parse_answer(raw: bytes) -> dict[str, Any]:
    """The object in a provider's answer. InvalidAnswer if there is none."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidAnswer("The answer is not JSON.") from error
    if not isinstance(document, dict):
        raise InvalidAnswer("The answer is no object.")
    return document


def complete_answer(call: LlmCall, document: dict[str, Any], upstream: Format) -> TokenUsage:
    """Correct an answer of a provider of the format `upstream`, in place, and return its usage.

    The model is the public id, and values that the SDK rejects are replaced. Without usage in the
    answer the returned one is estimated and the answer stays without. InvalidAnswer.
    """
    required = _REQUIRED.get(upstream)
    if required and not isinstance(document.get(required), list):
        raise InvalidAnswer(f"The answer has no {required}.")
    match upstream:
        case Format.CHAT:
            usage = read_chat_usage(document.get("usage"))
            document["model"] = call.model_id
            for choice in as_objects(document["choices"]):
                if choice.get("finish_reason") not in FINISH_REASONS:
                    choice["finish_reason"] = "stop"
        case Format.RESPONSES:
            usage = read_responses_usage(document.get("usage"))
            document["model"] = call.model_id
            hide_failure(document)
            fill_responses_usage(document)
        case Format.GOOGLE:
            if "error" in document:
                raise InvalidAnswer("The answer is an error.")
            usage = read_google_usage(document.get("usageMetadata"))
            document["modelVersion"] = call.model_id
    return usage or estimate_usage(call, measure_answer(upstream, document))
