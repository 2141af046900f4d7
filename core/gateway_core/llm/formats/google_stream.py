"""Streams of streamGenerateContent (contract §8.5, §8.6)."""

from typing import Any

from gateway_core.llm.formats.answers import GOOGLE_FIELDS, read_reason
from gateway_core.llm.formats.calls import Format, as_objects
from gateway_core.llm.formats.output import measure_candidates
from gateway_core.llm.formats.sse import (
    StreamBroken,
)
from gateway_core.llm.formats.streams import NEVER, SPACES, LlmStream, parse_usual, write_field
from gateway_core.llm.formats.usage import adds_up, fill_google_usage, read_google_usage
from gateway_core.llm.formats.writers import GoogleWriter


def is_blocked(document: dict[str, Any]) -> bool:
    """Return whether an answer or a chunk says why its prompt has no candidates."""
    feedback = document.get("promptFeedback")
    return isinstance(feedback, dict) and bool(read_reason(feedback.get("blockReason")))


class GoogleStream(LlmStream):
    """A Google stream (§8.5), as server-sent events or as one JSON array."""

    def __init__(self, model_id: str, *, event_stream: bool = True) -> None:
        self._chunks = GoogleWriter(event_stream=event_stream)
        super().__init__(Format.GOOGLE, self._chunks)
        self._model_id = model_id
        self._blocked = False
        self._model = NEVER
        self._public_model = NEVER

    def _pass_usual(self, block: bytes) -> bytes | None:
        lines = block.count(b"\n")
        frames = lines >> 1
        if (
            block.count(self._model) != frames
            or lines & 1
            or not block.startswith(b"data: {")
            or (frames != 1 and block.count(b"}\n\ndata: {") != frames - 1)
            or block.count(b'"error"')
            or block.count(b'"finishReason"')
        ):
            return None
        documents = parse_usual(block[len(b"data: ") : -2].split(b"\n\ndata: "))
        if not documents:
            return None
        size = 0
        for chunk in documents:
            if not adds_up(chunk.get("usageMetadata")):
                return None
            self._ends.note(as_objects(chunk.get("candidates")))
            size += measure_candidates(chunk)
        self.text_bytes += size
        for chunk in reversed(documents):
            # nearly every chunk has the sum of all before it
            usage = read_google_usage(chunk.get("usageMetadata"))
            if usage is not None:
                self.usage = usage
                break
        return self._chunks.write_block(block.replace(self._model, self._public_model))

    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        if GOOGLE_FIELDS.isdisjoint(document):
            return b""
        for space in SPACES:
            written = write_field(b"modelVersion", space, document.get("modelVersion"))
            if written in frame:
                self._model = written
                self._public_model = write_field(b"modelVersion", space, self._model_id)
        document["modelVersion"] = self._model_id
        self.usage = fill_google_usage(document) or self.usage
        self.text_bytes += measure_candidates(document)
        self._note_ends(as_objects(document.get("candidates")))
        self._blocked = self._blocked or is_blocked(document)
        return self._chunks.write([document])

    def _may_have_late_usage(self) -> bool:
        # a [DONE] ends nothing in this format
        return False

    def _complete(self) -> bytes:
        if not (self._blocked or self._ends.are_all):
            raise StreamBroken("The provider's stream ended early.")
        self.ended = True
        return self._chunks.close()
