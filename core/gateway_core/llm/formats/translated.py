"""Streams of a provider that speaks another format than the client."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gateway_core.llm.formats.answers import GOOGLE_FIELDS, ChoiceEnds
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    as_object,
    as_objects,
)
from gateway_core.llm.formats.chat_message import CallPieces, adopt_others
from gateway_core.llm.formats.chat_stream import measure_chunk, regularize_chunk
from gateway_core.llm.formats.google_stream import GoogleWriter, is_blocked
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
        self._ends = ChoiceEnds()
        self._blocked = False
        self._calls = defaultdict[int, CallPieces](CallPieces)
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
        if self.upstream is Format.GOOGLE:
            usage = read_google_usage(document.get("usageMetadata"))
            choices = as_objects(document.get("candidates"))
            self._blocked = self._blocked or is_blocked(document)
        else:
            usage = fill_chat_usage(document)
            choices = as_objects(document.get("choices"))
            for choice in choices:
                adopt_others(as_object(choice.get("delta")))
            regularize_chunk(document, self._calls)
        self.text_bytes += self._measure(document)
        self.usage = usage or self.usage
        self._ends.note(choices)
        self._note_reasons(document)
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
        if not (self._blocked or self._ends.are_all):
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
