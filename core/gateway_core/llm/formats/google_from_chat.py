"""Chat completions and chat streams as answers and streams of generateContent."""

import mimetypes
from collections.abc import Mapping
from typing import Any

from gateway_core.llm.formats.calls import (
    InvalidAnswer,
    TokenUsage,
    as_object,
    as_objects,
    read_index,
)
from gateway_core.llm.formats.chat_message import read_arguments
from gateway_core.llm.formats.media import list_images, read_data_url
from gateway_core.llm.formats.reasons import is_cut_by, to_google_reason
from gateway_core.llm.formats.thoughts import read_reasoning
from gateway_core.llm.formats.translated import ChunkTranslator
from gateway_core.llm.formats.usage import read_chat_usage, to_google_usage


def to_generated(document: Mapping[str, Any], model_id: str) -> dict[str, Any]:
    """Return the generateContent answer of a chat completion. InvalidAnswer for another kind."""
    if not isinstance(document.get("choices"), list):
        raise InvalidAnswer("The answer has no choices.")
    candidates = []
    for place, choice in enumerate(as_objects(document["choices"])):
        message = as_object(choice.get("message"))
        calls = as_objects(message.get("tool_calls"))
        index, reason = read_index(choice, place), str(choice.get("finish_reason") or "stop")
        read = [_to_call_part(call, is_cut=is_cut_by(reason)) for call in calls]
        is_malformed = None in read
        parts = [*_to_shown_parts(message), *filter(None, read)] or [{"text": ""}]
        candidates.append(_candidate(index, parts, reason, is_malformed=is_malformed))
    generated: dict[str, Any] = {"candidates": candidates}
    usage = read_chat_usage(document.get("usage"))
    if usage is not None:
        generated["usageMetadata"] = to_google_usage(usage)
    return generated | {"modelVersion": model_id, "responseId": str(document.get("id") or "")}


class GoogleFromChat(ChunkTranslator):
    """Chunks of Google from those of a chat stream.

    Function calls are whole in Google's chunks, so they are collected until the choice ends. The
    last chunk has the finish reasons and the usage.
    """

    def __init__(self, model_id: str) -> None:
        self._model_id = model_id
        self._id: str | None = None
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}
        """Function calls that are not sent yet, by choice and index."""
        self._malformed: set[int] = set()
        """Choices with a function call that cannot be made."""
        self._reasons: dict[int, str] = {}

    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks that one becomes."""
        self._id = self._id or str(chunk.get("id") or "")
        candidates = []
        for place, choice in enumerate(as_objects(chunk.get("choices"))):
            index = read_index(choice, place)
            delta = as_object(choice.get("delta"))
            if index not in self._calls or delta.get("tool_calls"):
                self._collect(index, delta)
            parts = _to_shown_parts(delta)
            if choice.get("finish_reason"):
                self._reasons[index] = str(choice["finish_reason"])
                parts += self._take_calls(index)
            if parts:
                candidates.append(_candidate(index, parts, None))
        return [self._shape(candidates)] if candidates else []

    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """Return the last chunk."""
        candidates = [
            _candidate(
                index,
                self._take_calls(index) or [{"text": ""}],
                # a provider may end its stream without one
                self._reasons.get(index, "stop"),
                is_malformed=index in self._malformed,
            )
            for index in self._calls
        ]
        metadata = {} if usage is None else {"usageMetadata": to_google_usage(usage)}
        return [self._shape(candidates) | metadata]

    def _collect(self, index: int, delta: Mapping[str, Any]) -> None:
        calls = self._calls.setdefault(index, {})
        for place, piece in enumerate(as_objects(delta.get("tool_calls"))):
            call = calls.setdefault(read_index(piece, place), {"name": [], "arguments": []})
            if piece.get("id"):
                call["id"] = piece["id"]
            function = as_object(piece.get("function"))
            for name in ("name", "arguments"):
                if isinstance(function.get(name), str):
                    call[name].append(function[name])

    def _take_calls(self, index: int) -> list[dict[str, Any]]:
        """Return the parts of the function calls of a choice, once."""
        calls, self._calls[index] = self._calls[index], {}
        is_cut = is_cut_by(self._reasons.get(index))
        parts = [_join_call(call, is_cut=is_cut) for call in calls.values()]
        if None in parts:
            self._malformed.add(index)
        return list(filter(None, parts))

    def _shape(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "candidates": candidates,
            "modelVersion": self._model_id,
            "responseId": self._id or "",
        }


def _candidate(
    index: int, parts: list[dict[str, Any]], reason: str | None, *, is_malformed: bool = False
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": index}
    if reason is not None:
        word = to_google_reason(reason)
        is_malformed = is_malformed and word == "STOP"
        candidate["finishReason"] = "MALFORMED_FUNCTION_CALL" if is_malformed else word
    return candidate


def _to_shown_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Texts and pictures of a message, or of a delta of one."""
    parts: list[dict[str, Any]] = []
    reasoning = read_reasoning(message)
    if reasoning is not None:
        parts.append({"text": reasoning[1], "thought": True})
    texts = (message.get("content"), message.get("refusal"))
    parts += [{"text": text} for text in texts if text and isinstance(text, str)]
    return [*parts, *map(_to_picture, list_images(message))]


def _to_picture(url: str) -> dict[str, Any]:
    read = read_data_url(url)
    if read is not None:
        return {"inlineData": {"mimeType": read[0], "data": read[1]}}
    kind = mimetypes.guess_type(url.partition("?")[0])[0]
    return {"fileData": {"mimeType": kind or "image/png", "fileUri": url}}


def _join_call(call: Mapping[str, Any], *, is_cut: bool) -> dict[str, Any] | None:
    """Return the part of a function call from its pieces: joined once, as they may be many."""
    function = {name: "".join(call[name]) for name in ("name", "arguments")}
    return _to_call_part({"id": call.get("id"), "function": function}, is_cut=is_cut)


def _to_call_part(call: Mapping[str, Any], *, is_cut: bool) -> dict[str, Any] | None:
    """Return the part of a function call; None if it cannot be read, and so must not be made."""
    function = as_object(call.get("function"))
    arguments = read_arguments(function.get("arguments"), is_cut=is_cut)
    name = function.get("name")
    if arguments is None or not name:
        return None
    named = {"id": call["id"]} if call.get("id") else {}
    return {"functionCall": {**named, "name": name, "args": arguments}}
