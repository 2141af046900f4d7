"""Bodies of LLM calls that can be translated: not nested too deeply."""

from collections.abc import Callable
from typing import Any

import orjson

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import LlmCall

SPARE_LEVELS = 32
"""Levels of nesting that translations add at most."""
MOST_LEVELS = 254 - SPARE_LEVELS
"""What the encoder takes besides."""

Read = Callable[[dict[str, Any], int], LlmCall]
"""Validates a body, given its size in bytes."""


def read_shallow(read: Read, body: dict[str, Any], size: int) -> tuple[LlmCall, int]:
    """Return the call of a body that is not nested too deeply to be translated, and its size.

    The call is reserved by the size of compact JSON, as a quote is (contract §2.7).
    """
    try:
        encoded = orjson.dumps(body)
        if encoded.count(b"[") + encoded.count(b"{") > MOST_LEVELS:
            # few bodies have so many brackets, of which fewer are levels
            deep: Any = body
            for _ in range(SPARE_LEVELS):
                deep = [deep]
            orjson.dumps(deep)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    return read(body, len(encoded)), size
