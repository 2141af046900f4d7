"""Output of providers, text, reasoning, calls or media (contract §7.4), and its length."""

from collections.abc import Iterable
from typing import Any

import orjson

from gateway_core.llm.formats.calls import Format, as_object, as_objects

_LIFECYCLE = frozenset(
    {
        "response.created",
        "response.failed",
        "response.in_progress",
        "response.queued",
    }
)
_SAID = ("arguments", "content", "input", "refusal", "summary", "text", "transcript")
"""Fields of items, parts and last events that have what the model says."""
_EMPTY_ITEMS = frozenset({"message", "reasoning"})
_DELTA_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
"""Fields of a chat message that are output."""
_LABELS = frozenset(
    {"format", "id", "index", "object", "role", "status", "thoughtSignature", "type"}
)


def shows_output(document: dict[str, Any], format_: Format) -> bool:
    """Return whether a frame of a provider has output."""
    match format_:
        case Format.CHAT:
            return any(
                _has_content(choice.get("delta") or choice.get("message"))
                for choice in as_objects(document.get("choices"))
            )
        case Format.GOOGLE:
            return any(
                _has_content(part)
                for candidate in as_objects(document.get("candidates"))
                for part in as_objects(as_object(candidate.get("content")).get("parts"))
            )
        case Format.RESPONSES:
            return _shows_event_output(document)


def _shows_event_output(event: dict[str, Any]) -> bool:
    kind = event.get("type")
    if not isinstance(kind, str) or not kind.startswith("response.") or kind in _LIFECYCLE:
        return False
    whole = as_object(event.get("item") or event.get("part"))
    if "item" in event and whole.get("type") not in _EMPTY_ITEMS:
        return True
    if whole or kind.endswith(".done"):
        return _has_content({name: (whole or event).get(name) for name in _SAID})
    return bool(event.get("delta", True))


def _has_content(part: Any, depth: int = 4) -> bool:
    """Return whether a part says something: `thought` and a signature alone do not."""
    if isinstance(part, dict):
        return any(
            name not in _LABELS and _has_content(value, depth - 1) for name, value in part.items()
        )
    if isinstance(part, list) and depth:
        return any(_has_content(item, depth - 1) for item in part)
    return bool(part) and part is not True


def measure_answer(format_: Format, document: dict[str, Any]) -> int:
    """Bytes of the output in an answer that is no stream."""
    match format_:
        case Format.CHAT:
            return sum(
                measure_delta(choice.get("message"))
                for choice in as_objects(document.get("choices"))
            )
        case Format.RESPONSES:
            return sum(
                measure_texts(item, ("arguments", "input"))
                + sum(
                    measure_texts(part, ("text", "refusal"))
                    for key in ("content", "summary")
                    for part in as_objects(item.get(key))
                )
                for item in as_objects(document.get("output"))
            )
        case Format.GOOGLE:
            return measure_candidates(document)


def measure_delta(delta: Any) -> int:
    """Bytes of the output in a chat message, or in a delta of one."""
    if not isinstance(delta, dict):
        return 0
    size = measure_texts(delta, _DELTA_TEXTS)
    for call in as_objects(delta.get("tool_calls")):
        size += measure_texts(as_object(call.get("function")), ("name", "arguments"))
    return size


def measure_plain(delta: Any) -> int | None:
    """Return the bytes of the output in a delta that has texts alone; None for another one."""
    if type(delta) is not dict:
        return None
    size = 0
    for name, value in delta.items():
        if type(value) is str:
            if name in _DELTA_TEXTS:
                size += len(value) if value.isascii() else len(value.encode())
            elif name == "role" and value != "assistant":
                return None
        elif value or (value is not None and name in _DELTA_TEXTS):
            return None
    return size


def measure_candidates(document: dict[str, Any]) -> int:
    """Bytes of the output in a generateContent answer, or in a chunk of one."""
    size = 0
    candidates = document.get("candidates")
    # without helpers, for each chunk is measured
    for candidate in candidates if isinstance(candidates, list) else ():
        content = candidate.get("content") if isinstance(candidate, dict) else None
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if not isinstance(part, dict):
                continue
            text = part.get("text")
            if isinstance(text, str):
                size += len(text) if text.isascii() else len(text.encode())
            if "functionCall" in part:
                size += _measure_call(part["functionCall"])
    return size


def _measure_call(call: Any) -> int:
    try:
        return len(orjson.dumps(call))
    except orjson.JSONEncodeError:
        # nested too deeply
        return 0


def measure_texts(holder: dict[str, Any], names: Iterable[str]) -> int:
    """Bytes of the strings that `holder` has under `names`."""
    size = 0
    for name in names:
        value = holder.get(name)
        if isinstance(value, str):
            size += len(value.encode())
    return size
