"""Responses requests for a provider that speaks Chat Completions alone: text and functions."""

from collections.abc import Mapping
from typing import Any

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.media import is_media
from gateway_core.llm.formats.requests import invalid
from gateway_core.llm.formats.translation import (
    IGNORED,
    find_word,
    join_texts,
    leave_out,
    list_items,
    refuse,
    refuse_others,
)

_SAME = ("parallel_tool_calls", "temperature", "top_p")
_HARMLESS = frozenset({"context_management", "max_tool_calls"})
"""Fields that concern tools and state of a provider of Responses alone."""
_KNOWN = IGNORED | {
    *_SAME,
    *_HARMLESS,
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "truncation",
}
_ROLES = {name: name for name in ("user", "assistant", "system", "developer")}
_CHOICES = {name: name for name in ("none", "auto", "required")}
_INCLUDED: Mapping[str, None] = dict.fromkeys(
    (
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    )
)
"""What may be asked for beside the answer, and is in it or concerns tools of the provider."""
_TEXTS = ("input_text", "output_text", "text")


def to_chat(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """The chat body, without model, of a valid Responses body.

    Messages of all roles may have pictures. Adds to `dropped` the fields that are left out.
    InvalidRequest names what cannot be translated. Reasoning of earlier turns is left out: chat
    has no place for it.
    """
    refuse_others(body, _KNOWN)
    leave_out(body, _HARMLESS, dropped)
    if body.get("truncation") not in (None, "disabled"):
        # a prompt that is too long is refused by the provider
        dropped.append("truncation")
    for place, name in enumerate(list_items(body.get("include"), "include")):
        find_word(_INCLUDED, name, f"include[{place}]")
    messages: list[dict[str, Any]] = []
    instructions = body.get("instructions")
    if instructions:
        messages.append({"role": "system", "content": join_texts(instructions, "instructions")})
    if isinstance(body["input"], str):
        messages.append({"role": "user", "content": body["input"]})
    else:
        for place, item in enumerate(body["input"]):
            _add_item(item, f"input[{place}]", messages)
    result: dict[str, Any] = {"messages": messages}
    result |= {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        result["max_completion_tokens"] = body["max_output_tokens"]
    reasoning = as_object(body.get("reasoning"))
    # a summary is shown beside the answer and does not change it
    refuse_others(reasoning, ("effort", "summary", "generate_summary"), "reasoning.")
    if reasoning.get("effort") is not None:
        result["reasoning_effort"] = reasoning["effort"]
    result |= _from_text(as_object(body.get("text")))
    tools = [
        _to_tool(tool, f"tools[{place}]")
        for place, tool in enumerate(list_items(body.get("tools"), "tools"))
    ]
    choice = body.get("tool_choice")
    match choice:
        case {"type": "allowed_tools", "tools": list(allowed)}:
            # few providers of chat know such a choice
            names = {each.get("name") for each in as_objects(allowed)}
            tools = [tool for tool in tools if tool["function"].get("name") in names]
            choice = as_object(choice).get("mode", "auto")
    if not tools:
        result.pop("parallel_tool_calls", None)
        return result
    result["tools"] = tools
    match choice:
        case None:
            pass
        case {"type": "function", "name": str(name)}:
            result["tool_choice"] = {"type": "function", "function": {"name": name}}
        case _:
            result["tool_choice"] = find_word(_CHOICES, choice, "tool_choice")
    return result


def _add_item(item: Any, path: str, messages: list[dict[str, Any]]) -> None:
    if not isinstance(item, dict):
        raise invalid("input", f"has {path} that is no object")
    match item.get("type") or "message":
        case "message":
            role = find_word(_ROLES, item.get("role"), f"{path}.role")
            content = item.get("content")
            messages.append(
                {"role": role, "content": _to_content(content, f"{path}.content", role)}
            )
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            # parallel calls, and the text before them, are one message of chat
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id"),
                    "content": _to_output(item.get("output"), f"{path}.output"),
                }
            )
        case "image_generation_call":
            url = f"data:image/png;base64,{item.get('result') or ''}"
            image = {"type": "image_url", "image_url": {"url": url}}
            messages.append({"role": "assistant", "content": [image]})
        case "reasoning":
            pass
        case _:
            raise refuse(f"{path}.type")


def _to_content(content: Any, path: str, role: str) -> Any:
    if isinstance(content, str):
        return content
    parts = [
        _to_part(part, f"{path}[{place}]") for place, part in enumerate(list_items(content, path))
    ]
    if role != "user" and not any(map(is_media, parts)):
        return join_texts(parts, path)
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _to_output(output: Any, path: str) -> Any:
    """The content of a tool's message."""
    if not isinstance(output, list):
        return join_texts(output, path)
    parts = [_to_part(part, f"{path}[{place}]") for place, part in enumerate(output)]
    return parts if any(map(is_media, parts)) else join_texts(parts, path)


def _to_part(part: Any, path: str) -> dict[str, Any]:
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXTS:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            detail = part.get("detail")
            image = {"url": url} | ({"detail": detail} if detail else {})
            return {"type": "image_url", "image_url": image}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
        case {"type": "input_file", "file_data": str(data)}:
            file = {"filename": part.get("filename") or "file", "file_data": data}
            return {"type": "file", "file": file}
        case _:
            raise refuse(path)


def _from_text(text: Mapping[str, Any]) -> dict[str, Any]:
    """The wanted form of the answer."""
    refuse_others(text, ("format", "verbosity"), "text.")
    result: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        result["verbosity"] = text["verbosity"]
    wanted = dict(as_object(text.get("format")))
    match wanted.pop("type", "text"):
        case "text":
            pass
        case "json_object":
            result["response_format"] = {"type": "json_object"}
        case "json_schema":
            result["response_format"] = {"type": "json_schema", "json_schema": wanted}
        case _:
            raise refuse("text.format.type")
    return result


def _to_tool(tool: Any, path: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise refuse(path, "must be a function for this model's provider")
    function = {
        name: tool[name]
        for name in ("name", "description", "parameters", "strict")
        if tool.get(name) is not None
    }
    return {"type": "function", "function": function}
