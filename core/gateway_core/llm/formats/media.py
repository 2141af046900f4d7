"""Pictures and documents in messages of chat that are no user's.

The chat form of a call may have them in each message: tools return pictures, and models draw them.
A provider of chat takes them from users alone. An answer of chat has them in `images`, as
aggregators do.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from gateway_core.llm.formats.calls import as_object, as_objects

_TEXTS = ("text", "refusal")
_NOTE = "See the attached content."
"""What a message that has only pictures says where they stand in the next one."""


def is_media(part: Any) -> bool:
    """Return whether a part of a chat message is more than text."""
    return isinstance(part, dict) and part.get("type") not in _TEXTS


def read_data_url(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 of a data URL; None for another URL."""
    if url[: len("data:")].lower() != "data:":
        return None
    head, found, data = url[len("data:") :].partition(",")
    if not found:
        return None
    media_type, marker, _ = head.partition(";base64")
    if not marker:
        data = b64encode(unquote_to_bytes(data)).decode()
    return media_type.partition(";")[0].lower() or "application/octet-stream", data


def write_image(url: str) -> dict[str, Any]:
    """Return the part of chat that has a picture."""
    return {"type": "image_url", "image_url": {"url": url}}


def list_images(message: Mapping[str, Any]) -> list[str]:
    """Return the URLs of the pictures in an answer of chat, or in a delta of one."""
    images = message.get("images")
    if not images:
        return []
    return [
        url
        for each in (images if isinstance(images, list) else [images])
        if (url := _read_image(each))
    ]


def _read_image(image: Any) -> str:
    if isinstance(image, str):
        return image
    held = as_object(image)
    url = held.get("image_url") or held.get("url")
    if isinstance(url, dict):
        url = url.get("url")
    if not url and isinstance(held.get("b64_json"), str):
        return f"data:image/png;base64,{held['b64_json']}"
    return url if isinstance(url, str) else ""


def move_media(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat body with what is no text in a user's message after the one that had it.

    Results of parallel calls follow each other, so theirs comes after the last one.
    """
    messages: list[Any] = []
    moved: list[dict[str, Any]] = []
    for given in body["messages"]:
        if not isinstance(given, dict):
            messages.append(given)
            continue
        message = _join_images(given)
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


def draws_pictures(body: Mapping[str, Any]) -> bool:
    """Return whether a chat body has pictures that a model drew in an earlier turn."""
    return any(map(_list_drawn, as_objects(body.get("messages"))))


def _list_drawn(message: Mapping[str, Any]) -> list[str]:
    return list_images(message) if message.get("role") == "assistant" else []


def _join_images(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with the pictures that its model drew among the parts of its content."""
    drawn = _list_drawn(message)
    if not drawn:
        return message
    content = message.get("content")
    texts = [{"type": "text", "text": content}] if content and isinstance(content, str) else content
    kept = {name: value for name, value in message.items() if name != "images"}
    return {**kept, "content": [*as_objects(texts), *map(write_image, drawn)]}


def _join(content: Iterable[Any]) -> str:
    texts = (part.get("text") or part.get("refusal") for part in content if not is_media(part))
    return "\n".join(text for text in texts if isinstance(text, str))
