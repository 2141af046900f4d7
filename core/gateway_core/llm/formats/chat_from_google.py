"""Google's answers and streams as Chat Completions."""

import secrets
from collections.abc import Mapping
from typing import Any

import orjson

from gateway_core.llm.formats.answers import read_reason
from gateway_core.llm.formats.calls import (
    InvalidAnswer,
    TokenUsage,
    as_object,
    as_objects,
    read_index,
)
from gateway_core.llm.formats.chat_message import read_arguments
from gateway_core.llm.formats.google_stream import is_blocked
from gateway_core.llm.formats.media import write_image
from gateway_core.llm.formats.reasons import to_chat_reason
from gateway_core.llm.formats.thoughts import make_call_id, sign_call
from gateway_core.llm.formats.translated import ChunkTranslator
from gateway_core.llm.formats.usage import read_google_usage, to_chat_usage


def to_completion(
    document: Mapping[str, Any], model_id: str, created: int, most_calls: int | None = None
) -> dict[str, Any]:
    """Return the chat completion of a generateContent answer, with at most so many calls a choice.

    InvalidAnswer if the answer is of another kind.
    """
    candidates = as_objects(document.get("candidates"))
    if not candidates and not document.get("promptFeedback"):
        raise InvalidAnswer("The answer has no candidates.")
    choices = []
    for place, candidate in enumerate(candidates or [_blocked()]):
        delta = _read_parts(candidate, 0, most_calls)
        has_calls = "tool_calls" in delta
        for call in delta.get("tool_calls", ()):
            del call["index"]
        content = None if has_calls else ""
        message = {"role": "assistant", "content": content, "refusal": None, **delta}
        choices.append(
            {
                "index": read_index(candidate, place),
                "message": message,
                "logprobs": None,
                "finish_reason": _find_reason(candidate, has_calls=has_calls),
            }
        )
    completion = {
        "id": _find_id(document),
        "object": "chat.completion",
        "created": created,
        "model": model_id,
        "choices": choices,
    }
    usage = read_google_usage(document.get("usageMetadata"))
    if usage is not None:
        completion["usage"] = to_chat_usage(usage)
    return completion


class ChatFromGoogle(ChunkTranslator):
    """Chunks of a chat stream from those of Google; the usage is last, if it was asked for.

    Each choice has at most `most_calls` calls.
    """

    def __init__(
        self,
        model_id: str,
        created: int,
        *,
        include_usage: bool,
        most_calls: int | None = None,
    ) -> None:
        self._most_calls = most_calls
        self._model_id = model_id
        self._created = created
        self._extra: dict[str, Any] = {"usage": None} if include_usage else {}
        self._id = ""
        self._calls: dict[int, int] = {}
        """Number of function calls so far, by candidate."""
        self._open: set[int] = set()
        """Candidates without a finish reason."""

    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks that one becomes."""
        self._id = self._id or _find_id(chunk)
        candidates = as_objects(chunk.get("candidates"))
        if not candidates and is_blocked(chunk):
            candidates = [_blocked()]
        chunks = []
        for place, candidate in enumerate(candidates):
            index = read_index(candidate, place)
            is_first = index not in self._calls
            before = self._calls.get(index, 0)
            delta = _read_parts(candidate, before, self._most_calls)
            if is_first:
                delta = {"role": "assistant", "content": "", **delta}
            self._calls[index] = before + len(delta.get("tool_calls", ()))
            self._open.add(index)
            if delta:
                chunks.append(self._make(index, delta, None))
            if read_reason(candidate.get("finishReason")):
                self._open.discard(index)
                reason = _find_reason(candidate, has_calls=self._calls[index] > 0)
                chunks.append(self._make(index, {}, reason))
        return chunks

    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """Return the reasons that the provider has not given, and the chunk with the usage."""
        chunks = [
            self._make(index, {}, "tool_calls" if self._calls[index] else "stop")
            for index in sorted(self._open)
        ]
        if self._extra and usage is not None:
            chunks.append(self._shape([]) | {"usage": to_chat_usage(usage)})
        return chunks

    def _make(self, index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._shape([choice])

    def _shape(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model_id,
            "choices": choices,
            **self._extra,
        }


def _read_parts(candidate: Mapping[str, Any], calls: int, most_calls: int | None) -> dict[str, Any]:
    """Return the parts of a candidate as a delta, after `calls` earlier function calls."""
    delta: dict[str, Any] = {}
    for part in as_objects(as_object(candidate.get("content")).get("parts")):
        text, call = part.get("text"), part.get("functionCall")
        if isinstance(text, str):
            name = "reasoning_content" if part.get("thought") is True else "content"
            delta[name] = delta.get(name, "") + text
        elif isinstance(call, dict):
            # the model may ask for it again, once it has the result of the others
            if calls == most_calls or not call.get("name"):
                continue
            if call.get("partialArgs") or call.get("willContinue"):
                # a call without its arguments is not made
                raise InvalidAnswer("The answer has a function call in pieces.")
            # some servers write the object as text; what cannot be read stays as it came
            arguments: Any = read_arguments(call.get("args"))
            if arguments is None:
                arguments = call["args"]
            if not isinstance(arguments, str):
                arguments = orjson.dumps(arguments).decode()
            function = {"name": call.get("name"), "arguments": arguments}
            made = {
                "index": calls,
                "id": call.get("id") or make_call_id(),
                "type": "function",
                "function": function,
            }
            signature = part.get("thoughtSignature")
            if isinstance(signature, str):
                # no id of Google's is sent back to it
                made |= {"id": make_call_id(signature), "extra_content": sign_call(signature)}
            calls += 1
            delta.setdefault("tool_calls", []).append(made)
        elif ("inlineData" in part or "fileData" in part) and part.get("thought") is not True:
            delta.setdefault("images", []).append(write_image(_read_picture(part)))
    return delta


def _read_picture(part: Mapping[str, Any]) -> str:
    """Return the URL of the picture in a part. InvalidAnswer for other media."""
    blob, file = as_object(part.get("inlineData")), as_object(part.get("fileData"))
    kind, data, url = (blob or file).get("mimeType"), blob.get("data"), file.get("fileUri")
    if isinstance(kind, str) and kind.lower().startswith("image/"):
        if isinstance(data, str):
            return f"data:{kind.lower()};base64,{data}"
        if isinstance(url, str):
            return url
    raise InvalidAnswer("The answer has media, for which chat has no place.")


def _find_reason(candidate: Mapping[str, Any], *, has_calls: bool) -> str:
    # an unknown word says that something other than the model ended the answer
    reason = to_chat_reason(candidate.get("finishReason")) or "content_filter"
    return "tool_calls" if has_calls and reason == "stop" else reason


def _find_id(document: Mapping[str, Any]) -> str:
    return str(document.get("responseId") or f"chatcmpl-{secrets.token_hex(12)}")


def _blocked() -> dict[str, Any]:
    """Return the candidate of a prompt that Google rejects without one."""
    return {"content": {"parts": []}, "finishReason": "SAFETY", "index": 0}
