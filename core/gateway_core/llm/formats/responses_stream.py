"""Streams of Responses (contract §7.3)."""

import re
from typing import Any

from gateway_core.llm.formats.sse import (
    ErrorForm,
    StreamBroken,
    event_frame,
    find_error,
    parse_data,
    read_data,
    responses_error,
)
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.usage import (
    fill_responses_usage,
    hide_failure,
    measure_texts,
    read_responses_usage,
)

_SEQUENCE_NUMBER = re.compile(rb'"sequence_number": ?(\d+)')


class ResponsesStream(LlmStream):
    """A Responses stream (§7.3): only the model inside `response`, and its usage, change."""

    def __init__(self, model_id: str) -> None:
        super().__init__()
        self._model_id = model_id
        self._last = b""

    def fail(self, form: ErrorForm) -> bytes:
        """An event with the error, numbered after the last one."""
        numbers = _SEQUENCE_NUMBER.findall(self._last)
        return responses_error(form, int(numbers[-1]) + 1 if numbers else 0)

    def _pass_usual(self, block: bytes) -> bytes | None:
        frames = block.count(b".delta\ndata: {")
        if (
            block.count(b"\n") != 3 * frames
            or not block.startswith(b"event: response.")
            or (frames != 1 and block.count(b"}\n\nevent: response.") != frames - 1)
            or block.count(b'"response"')
            or block.count(b'"error"')
        ):
            return None
        self._last = block
        self._count(block, frames)
        return block

    def _pass_frame(self, frame: bytes) -> bytes:
        data = read_data(frame)
        if not data or data == b"[DONE]":
            return b""
        document = parse_data(data)
        kind = document.get("type")
        error = find_error(document) if kind == "error" or "type" not in document else None
        if error is not None:
            raise error
        response = document.get("response")
        if isinstance(response, dict):
            response["model"] = self._model_id
            hide_failure(response)
            fill_responses_usage(response)
            self._usage = read_responses_usage(response.get("usage")) or self._usage
        self.ended = kind in ("response.completed", "response.incomplete", "response.failed")
        self.failed = kind == "response.failed"
        self._text_bytes += self._measure(document)
        self._last = event_frame(document)
        return self._last

    def _complete(self) -> bytes:
        if not self.ended:
            raise StreamBroken("The provider's stream ended early.")
        return b""

    def _measure(self, document: dict[str, Any]) -> int:
        if not str(document.get("type")).endswith(".delta"):
            return 0
        return measure_texts(document, ("delta",))
