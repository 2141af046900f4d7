"""Streams of a provider that speaks another format than the client."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from gateway_core.llm.formats.answers import GOOGLE_FIELDS, read_reason
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    TokenUsage,
    as_objects,
)
from gateway_core.llm.formats.chat_message import DeltaReader
from gateway_core.llm.formats.estimates import join_usages
from gateway_core.llm.formats.google_stream import is_blocked
from gateway_core.llm.formats.output import measure_candidates
from gateway_core.llm.formats.sse import ErrorForm, StreamBroken, split_frames
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.usage import fill_chat_usage, read_google_usage
from gateway_core.llm.formats.writers import ResponsesWriter, Writer


class ChunkTranslator(ABC):
    """Translates the chunks of one stream from one format to another."""

    kept_bytes = 0
    """Bytes of the pictures that it keeps to the end of the stream."""

    @abstractmethod
    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks that one becomes."""

    @abstractmethod
    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """Return the chunks that end the stream; `usage` is what the provider reported."""

    def show_response(self) -> dict[str, Any]:
        """Return the Responses object as far as it has come; empty for other formats."""
        return {}


class TranslatedStream(LlmStream):
    """A provider's stream in the format `upstream`, translated by each translator in turn.

    Every frame is parsed. `functions` are the names of those that the model may call.
    """

    def __init__(
        self,
        upstream: Format,
        translators: Sequence[ChunkTranslator],
        writer: Writer,
        functions: Collection[str] = (),
    ) -> None:
        super().__init__(upstream, writer)
        self._translators = translators
        self._blocked = False
        self._deltas = DeltaReader(functions, adopts_others=True)

    @property
    def waiting_bytes(self) -> int:
        """Bytes in memory of a frame that is not whole yet, and of pictures that are kept."""
        return super().waiting_bytes + sum(each.kept_bytes for each in self._translators)

    def fail(self, form: ErrorForm) -> bytes:
        """Return the last bytes, with the output so far where the format has a place for it."""
        if isinstance(self._writer, ResponsesWriter):
            self._writer.note(self._translators[-1].show_response())
        return super().fail(form)

    def _pass(self, block: bytes) -> bytes:
        return self._pass_all(split_frames(block), self._pass_frame)

    def _pass_document(self, document: dict[str, Any], frame: bytes) -> bytes:
        self._note_usage(document)
        if self.upstream is Format.GOOGLE:
            choices = as_objects(document.get("candidates"))
            self.text_bytes += measure_candidates(document)
            self._blocked = self._blocked or is_blocked(document)
        else:
            choices = as_objects(document.get("choices"))
            for choice in choices:
                if choice.get("finish_reason"):
                    choice["finish_reason"] = read_reason(choice["finish_reason"])
            self.text_bytes += self._deltas.read(choices)
        self._note_ends(choices)
        if not choices and (
            GOOGLE_FIELDS.isdisjoint(document) and not isinstance(document.get("choices"), list)
        ):
            return b""
        try:
            chunks = self._translators[0].translate(document)
            for translator in self._translators[1:]:
                chunks = [later for chunk in chunks for later in translator.translate(chunk)]
        except InvalidAnswer as invalid:
            raise StreamBroken(str(invalid)) from invalid
        return self._writer.write(chunks)

    def _note_usage(self, document: dict[str, Any]) -> bool:
        if self.upstream is Format.GOOGLE:
            usage = read_google_usage(document.get("usageMetadata"))
        else:
            usage = fill_chat_usage(document)
        if usage is not None:
            self.usage = join_usages(self.usage, usage)
        return usage is not None

    def _pass_done(self) -> bytes:
        if not (self._blocked or self._ends.has_any):
            raise StreamBroken("The provider's stream has no choice.")
        self.ended = True
        chunks: list[dict[str, Any]] = []
        for translator in self._translators:
            chunks = [later for chunk in chunks for later in translator.translate(chunk)]
            chunks += translator.end(self.usage)
        return self._writer.write(chunks) + self._writer.close()

    def _complete(self) -> bytes:
        if self.ended:
            return b""
        if not (self.is_done or self._blocked or self._ends.are_all):
            raise StreamBroken("The provider's stream ended early.")
        return self._pass_done()
