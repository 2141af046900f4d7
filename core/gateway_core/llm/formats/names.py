"""Function names that a provider's format refuses, replaced by legal ones and turned back.

A replacement follows from the name alone, so that all turns of a conversation have the same one.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from gateway_core.llm.formats.calls import Format, TokenUsage, as_object, as_objects
from gateway_core.llm.formats.translated import ChunkTranslator

_LEGAL = {
    Format.CHAT: re.compile(r"[A-Za-z0-9_-]{1,64}"),
    Format.GOOGLE: re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"),
}
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
_REPLACEMENT = re.compile(r"_.*_[0-9a-f]{8}")
"""Names like the gateway's own, which are replaced as well, to stay apart from them."""
_MOST_KEPT = 54
"""Characters of the name in its replacement, beside an underscore on each side and the digest."""

Rename = Callable[[str], str]


class NameRestorer(ChunkTranslator):
    """Turns the function names in the chunks of a Google stream back."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def translate(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunk itself."""
        restore_names(chunk, self._names)
        return [chunk]

    def end(self, usage: TokenUsage | None) -> list[dict[str, Any]]:
        """Nothing."""
        return []


def replace_names(
    body: Mapping[str, Any], upstream: Format
) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return a chat body whose function names `upstream` accepts, and the client's by legal name.

    The body is the same object where all names are legal.
    """
    legal = _LEGAL[upstream]
    names: dict[str, str] = {}

    def rename(name: str) -> str:
        if not name or (legal.fullmatch(name) and not _REPLACEMENT.fullmatch(name)):
            return name
        digest = sha256(name.encode()).hexdigest()[:8]
        made = f"_{_ILLEGAL.sub('_', name)[:_MOST_KEPT].lstrip('_')}_{digest}"
        names[made] = name
        return made

    renamed = _change_names(body, rename)
    return (renamed, names) if names else (body, names)


def restore_names(document: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Turn the function names in an answer or a chunk of Google's format back, in place."""
    for candidate in as_objects(document.get("candidates")):
        for part in as_objects(as_object(candidate.get("content")).get("parts")):
            call = as_object(part.get("functionCall"))
            name = call.get("name")
            if isinstance(name, str) and name in names:
                call["name"] = names[name]


def _change_names(body: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    """Return a copy of a chat body with its function names changed, wherever they stand."""
    result = dict(body)
    if isinstance(body.get("tools"), list):
        result["tools"] = [_change_function(tool, rename) for tool in body["tools"]]
    choice = as_object(body.get("tool_choice"))
    if choice:
        result["tool_choice"] = choice = _change_function(choice, rename)
        allowed = as_object(choice.get("allowed_tools"))
        if isinstance(allowed.get("tools"), list):
            tools = [_change_function(tool, rename) for tool in allowed["tools"]]
            choice["allowed_tools"] = {**allowed, "tools": tools}
    messages = body.get("messages")
    if isinstance(messages, list):
        result["messages"] = [_change_message(message, rename) for message in messages]
    return result


def _change_message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, dict):
        return message
    if isinstance(message.get("tool_calls"), list):
        calls = [_change_function(call, rename) for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if message.get("role") == "function" and isinstance(message.get("name"), str):
        return {**message, "name": rename(message["name"])}
    return message


def _change_function(holder: Any, rename: Rename) -> Any:
    """Return a tool, a choice or a call with the name of its function changed."""
    function = as_object(as_object(holder).get("function"))
    if not isinstance(function.get("name"), str):
        return holder if not isinstance(holder, dict) else dict(holder)
    return {**holder, "function": {**function, "name": rename(function["name"])}}
