"""Pictures and documents in messages of chat bodies that are no user's.

The chat form of a call may have them in each message: tools return pictures, and models draw them.
A provider of chat takes them from users alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_TEXTS = ("text", "refusal")
_NOTE = "See the attached content."
"""What a message that has only pictures says where they stand in the next one."""


def is_media(part: Any) -> bool:
    """Return whether a part of a chat message is more than text."""
    return isinstance(part, dict) and part.get("type") not in _TEXTS


def move_media(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat body with what is no text in a user's message after the one that had it.

    Results of parallel calls follow each other, so theirs comes after the last one.
    """
    messages: list[Any] = []
    moved: list[dict[str, Any]] = []
    for message in body["messages"]:
        role = message.get("role")
        if moved and role != "tool":
            messages.append({"role": "user", "content": moved})
            moved = []
        content = message.get("content")
        if role == "user" or not isinstance(content, list) or not any(map(is_media, content)):
            messages.append(message)
            continue
        parts = [part for part in content if is_media(part)]
        texts = _join(content) or ("" if role == "assistant" else _NOTE)
        messages.append({**message, "content": texts})
        if message.get("tool_calls"):
            # the results have to follow the calls
            moved = parts
        elif role == "tool":
            moved += parts
        else:
            messages.append({"role": "user", "content": parts})
    if moved:
        messages.append({"role": "user", "content": moved})
    return {**body, "messages": messages}


def _join(content: Iterable[Any]) -> str:
    texts = (part.get("text") or part.get("refusal") for part in content if not is_media(part))
    return "\n".join(text for text in texts if isinstance(text, str))
