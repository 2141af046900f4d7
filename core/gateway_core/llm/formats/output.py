"""Which frames of a provider have output: text, reasoning, a call or media (contract §7.4)."""

from typing import Any

from gateway_core.llm.formats.calls import Format, as_object, as_objects

_LIFECYCLE = frozenset(
    {
        "keepalive",
        "ping",
        "response.created",
        "response.failed",
        "response.in_progress",
        "response.queued",
    }
)
_BEGINNINGS = frozenset(
    {
        "response.content_part.added",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
    }
)
"""Events that begin an item or a part of one, mostly an empty one."""
_EMPTY_ITEMS = frozenset({"message", "reasoning"})
_LABELS = frozenset({"id", "index", "object", "role", "status", "type"})


def shows_output(document: dict[str, Any], format_: Format) -> bool:
    """Return whether a frame of a provider has output."""
    match format_:
        case Format.CHAT:
            return any(
                _has_content(choice.get("delta")) for choice in as_objects(document.get("choices"))
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
    if kind in _LIFECYCLE:
        return False
    if kind in _BEGINNINGS:
        begun = as_object(event.get("item") or event.get("part"))
        if kind == "response.output_item.added" and begun.get("type") not in _EMPTY_ITEMS:
            return True
        parts = as_objects(begun.get("content")) + as_objects(begun.get("summary"))
        return any(map(_has_content, parts)) or bool(begun.get("text") or begun.get("refusal"))
    return bool(event.get("delta", True))


def _has_content(part: Any) -> bool:
    """Return whether a part says something: `thought` and a signature alone do not."""
    return isinstance(part, dict) and any(
        value and name not in _LABELS and value is not True and name != "thoughtSignature"
        for name, value in part.items()
    )
