"""Streams of a provider that speaks another format than the client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gateway_core.llm.formats.answers import GOOGLE_FIELDS
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    as_object,
)
from gateway_core.llm.formats.chat_stream import measure_chunk
from gateway_core.llm.formats.google_stream import GoogleWriter, has_finished
from gateway_core.llm.formats.responses_writer import ResponsesWriter
from gateway_core.llm.formats.sse import (
    DONE,
    ErrorForm,
    StreamBroken,
    chat_error,
    data_frame,
)
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.usage import fill_chat_usage, measure_candidates, read_google_usage


class ChunkTranslator(ABC):
    """Translates the chunks of one stream from one format to another."""

    @abstractmethod
    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks that one becomes."""

    @abstractmethod
    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """The chunks that end the stream; `usage` is what the provider reported."""

    def show_response(self) -> dict[str, Any]:
        """Return the Responses object as far as it has come; empty for other formats."""
        return {}


def begins_call(piece: Mapping[str, Any], known: Any) -> bool:
    """Whether a piece of a function call begins one; `known` is the id of the last at its index.

    Some providers give all calls one index, others each piece an id of its own.
    """
    call_id = piece.get("id")
    return bool(call_id) and call_id != known and bool(as_object(piece.get("function")).get("name"))


class TranslatedStream(LlmStream):
    """A provider's stream in the format `upstream`, translated by each translator in turn.

    Every frame is parsed. `created` is the time of the call in Unix seconds.
    """

    def __init__(
        self,
        call: LlmCall,
        upstream: Format,
        translators: Sequence[ChunkTranslator],
        created: int,
    ) -> None:
        super().__init__(upstream)
        self._format = call.format
        self._translators = translators
        self._finished = False
        self._responses = ResponsesWriter(call.model_id, created)
        self._google = GoogleWriter(event_stream=call.event_stream)

    def fail(self, form: ErrorForm) -> bytes:
        """The error in the client's format."""
        match self._format:
            case Format.CHAT:
                return chat_error(form)
            case Format.RESPONSES:
                return self._responses.fail(form, self._translators[-1].show_response())
            case Format.GOOGLE:
                return self._google.fail(form)

    def keep_alive(self) -> bytes:
        """A sign of life in the client's format."""
        match self._format:
            case Format.CHAT:
                return super().keep_alive()
            case Format.RESPONSES:
                return self._responses.keep_alive()
            case Format.GOOGLE:
                return self._google.keep_alive()

    def resume(self, held: bytes, early: ResponsesWriter) -> bytes:
        """Go on with the response that `early` began; the frames `held`, written anew."""
        return self._responses.resume(held, early)

    def _pass_usual(self, block: bytes) -> bytes | None:
        return None

    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        self.text_bytes += self._measure(document)
        if self.upstream is Format.GOOGLE:
            usage = read_google_usage(document.get("usageMetadata"))
        else:
            usage = fill_chat_usage(document)
        self.usage = usage or self.usage
        ends = self._note_reasons(document)
        if self.upstream is Format.GOOGLE:
            ends = has_finished(document)
        self._finished = self._finished or ends
        if GOOGLE_FIELDS.isdisjoint(document) and not isinstance(document.get("choices"), list):
            return b""
        chunks = [document]
        try:
            for translator in self._translators:
                chunks = [later for chunk in chunks for later in translator.translate(chunk)]
        except InvalidAnswer as invalid:
            raise StreamBroken(str(invalid)) from invalid
        return self._write(chunks)

    def _pass_done(self) -> bytes:
        self.ended = True
        chunks: list[dict[str, Any]] = []
        for translator in self._translators:
            chunks = [later for chunk in chunks for later in translator.translate(chunk)]
            chunks += translator.end(self.usage)
        sent = self._write(chunks)
        match self._format:
            case Format.CHAT:
                return sent + DONE
            case Format.RESPONSES:
                return sent
            case Format.GOOGLE:
                return sent + self._google.close()

    def _complete(self) -> bytes:
        if self.ended:
            return b""
        if not self._finished:
            raise StreamBroken("The provider's stream ended early.")
        return self._pass_done()

    def _write(self, chunks: Sequence[dict[str, Any]]) -> bytes:
        match self._format:
            case Format.CHAT:
                return b"".join(map(data_frame, chunks))
            case Format.GOOGLE:
                return self._google.write(b"".join(map(data_frame, chunks)))
            case Format.RESPONSES:
                return b"".join(map(self._responses.write, chunks))

    def _measure(self, document: dict[str, Any]) -> int:
        if self.upstream is Format.GOOGLE:
            return measure_candidates(document)
        return measure_chunk(document)
