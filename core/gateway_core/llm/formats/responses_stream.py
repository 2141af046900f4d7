"""Streams of Responses (contract §7.3)."""

from typing import Any

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.chat_message import mark_unreadable
from gateway_core.llm.formats.failures import ReportedError, find_error
from gateway_core.llm.formats.output import measure_texts
from gateway_core.llm.formats.sse import (
    StreamBroken,
)
from gateway_core.llm.formats.streams import LlmStream, parse_usual
from gateway_core.llm.formats.usage import fill_responses_usage
from gateway_core.llm.formats.writers import ResponsesWriter

_KINDS = ("response.", "error", "keepalive")
"""Beginnings of the types of events."""


class ResponsesStream(LlmStream):
    """A Responses stream (§7.3): only the model inside `response`, and its usage, change.

    Calls whose arguments cannot be read are incomplete.
    Events that a provider does not number from 0 without gaps are numbered anew. `created` is the
    time of the call in Unix seconds.
    """

    def __init__(self, model_id: str, created: int) -> None:
        self._events = ResponsesWriter(model_id, created)
        super().__init__(Format.RESPONSES, self._events)
        self._model_id = model_id

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
        lines = block.split(b"\n")
        events = parse_usual(line[len(b"data: ") :] for line in lines[1::3])
        if not events:
            return None
        for number, (event, name) in enumerate(
            zip(events, lines[::3], strict=False), self._events.count
        ):
            kind = str(event.get("type")).encode()
            if event.get("sequence_number") != number or name != b"event: " + kind:
                return None
        self._events.count += frames
        self.text_bytes += sum(map(measure_event, events))
        return block

    def _find_error(self, document: dict[str, Any]) -> ReportedError | None:
        # events of tools have errors of their own
        if document.get("type") not in ("error", "response.failed", None):
            return None
        response = document.get("response")
        if isinstance(response, dict):
            self._note_response(response)
            # its counts are final
            self.ended = document.get("type") == "response.failed"
        return find_error(document)

    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        kind = document.get("type")
        if not isinstance(kind, str) or not kind.isprintable() or not kind.startswith(_KINDS):
            return b""
        response = document.get("response")
        if isinstance(response, dict):
            self._note_response(response)
            self.usage = fill_responses_usage(document) or self.usage
        if kind == "response.output_item.done":
            mark_unreadable([document.get("item")])
        self.ended = kind in ("response.completed", "response.incomplete")
        if self.ended and not isinstance(response, dict):
            raise StreamBroken("The last event of the provider has no response.")
        self.text_bytes += measure_event(document)
        return self._events.write_event(document)

    def _note_response(self, response: dict[str, Any]) -> None:
        """Correct the response of an event, in place, and keep it."""
        response["model"] = self._model_id
        mark_unreadable(response.get("output"))
        self.usage = fill_responses_usage(response) or self.usage
        self._events.note(response)

    def _complete(self) -> bytes:
        if not self.ended:
            raise StreamBroken("The provider's stream ended early.")
        return b""


def measure_event(document: dict[str, Any]) -> int:
    """Bytes of the output in an event of a Responses stream."""
    if not str(document.get("type")).endswith(".delta"):
        return 0
    return measure_texts(document, ("delta",))
