"""Responses requests as those of Chat Completions: texts, media, functions and reasoning."""

from collections.abc import Mapping
from typing import Any

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.client_tools import CALLS, RESULTS, ClientTools
from gateway_core.llm.formats.media import is_media, write_image
from gateway_core.llm.formats.requests import invalid
from gateway_core.llm.formats.thoughts import Thoughts, unseal
from gateway_core.llm.formats.translation import (
    IGNORED,
    find_word,
    join_texts,
    leave_out,
    list_items,
    refuse,
    refuse_others,
)

_SAME = (
    *("frequency_penalty", "min_p", "parallel_tool_calls", "presence_penalty", "seed", "stop"),
    *("temperature", "top_k", "top_p"),
)
"""Fields of the same meaning in chat; servers of both have more than OpenAI's Responses."""
_HARMLESS = frozenset({"context_management", "max_tool_calls", "top_logprobs"})
"""Fields that concern tools and state of a provider of Responses, or stand beside the answer."""
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
# servers of chat other than OpenAI's know no role of developers
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_UPDATED = ("reasoning", "text")
"""Fields that items of the input may change for the answers after them."""
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
_FINISHED = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "web_search_call",
    }
)
"""Items of tools that the provider of an earlier turn ran: the message after them has the gist."""
_APPROVALS = ("mcp_approval_request", "mcp_approval_response")
"""Items of such tools, too, unless the last one asks the provider to run one now."""
_TEXTS = ("input_text", "output_text", "text")


def to_chat(body: Mapping[str, Any], tools: ClientTools, dropped: list[str]) -> dict[str, Any]:
    """Return the chat body, without model, of a valid Responses body with these tools.

    Messages of all roles may have pictures. Adds to `dropped` the fields that are left out.
    InvalidRequest names what cannot be translated. Reasoning goes back to a provider of chat that
    wrote it; all other is left out.
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
    settings = {name: as_object(body.get(name)) for name in _UPDATED}
    if isinstance(body["input"], str):
        messages.append({"role": "user", "content": body["input"]})
    else:
        reader = _InputReader(messages, tools)
        for place, item in enumerate(body["input"], 1):
            kind = as_object(item).get("type")
            if kind == "configuration_update":
                for name, given in settings.items():
                    settings[name] = given | as_object(item.get(name))
            elif kind not in _APPROVALS or place == len(body["input"]):
                reader.add(item, f"input[{place - 1}]")
    if not messages:
        raise invalid("input", "has nothing for the model to answer")
    result: dict[str, Any] = {"messages": messages}
    result |= {name: body[name] for name in _SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        result["max_completion_tokens"] = body["max_output_tokens"]
    reasoning = settings["reasoning"]
    # all but the effort is about what is shown beside the answer
    others = reasoning.keys() - {"effort", "summary", "generate_summary"}
    leave_out(reasoning, others, dropped, "reasoning.")
    if reasoning.get("effort") is not None:
        result["reasoning_effort"] = reasoning["effort"]
    result |= _from_text(settings["text"])
    choice = body.get("tool_choice")
    match choice:
        case {"type": "allowed_tools", "tools": list(allowed), **rest}:
            # few providers of chat know such a choice
            tools.allow(as_objects(allowed))
            choice = rest.get("mode", "auto")
    if not tools.functions:
        result.pop("parallel_tool_calls", None)
        return result
    result["tools"] = tools.functions
    match choice:
        case None:
            pass
        case {"type": "function" | "custom", "name": str()} | {
            "type": "apply_patch" | "local_shell" | "shell"
        }:
            function = {"name": tools.name_function(as_object(choice))}
            result["tool_choice"] = {"type": "function", "function": function}
        case _:
            result["tool_choice"] = find_word(_CHOICES, choice, "tool_choice")
    return result


class _InputReader:
    """Adds items of an input to the messages of a chat."""

    def __init__(self, messages: list[dict[str, Any]], tools: ClientTools) -> None:
        self._messages = messages
        self._tools = tools
        self._callers: dict[str, dict[str, Any]] = {}
        """Messages with calls, by the ids of the calls."""
        self._extra: Mapping[str, Any] | None = None
        """The `extra_content` of the next call."""
        self._reasoning: tuple[str, str] | None = None
        """Reasoning of the next message of the assistant, after its field."""
        self._details: list[Mapping[str, Any]] = []
        """Its `reasoning_details`."""

    def add(self, item: Any, path: str) -> None:
        if not isinstance(item, dict):
            raise invalid(path, "must be an object")
        match item.get("type") or "message":
            case "message":
                role = find_word(_ROLES, item.get("role"), f"{path}.role")
                content = _to_content(item.get("content"), f"{path}.content", role)
                self._messages.append({"role": role, "content": content})
                if role == "assistant":
                    self._give_reasoning()
            case str(_) if item.get("execution") == "server":
                # a search for tools that the provider of an earlier turn made
                pass
            case str(kind) if kind in CALLS:
                self._add_call(self._tools.read_call(item))
            case str(kind) if kind in RESULTS:
                content = _to_output(self._tools.read_result(item), f"{path}.output")
                call_id = item.get("call_id") or item.get("id")
                self._add_result({"role": "tool", "tool_call_id": call_id, "content": content})
            case "image_generation_call":
                # one that failed has no picture
                if isinstance(item.get("result"), str) and item["result"]:
                    kind = item.get("output_format") or "png"
                    url = f"data:image/{kind};base64,{item['result']}"
                    self._messages.append({"role": "assistant", "content": [write_image(url)]})
            case "reasoning":
                self._note(item)
            case "additional_tools":
                pass
            case str(kind) if kind in _FINISHED:
                pass
            case _:
                raise refuse(f"{path}.type")

    def _add_call(self, call: dict[str, Any]) -> None:
        # parallel calls, and the text before them, are one message of chat
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        self._give_reasoning()
        if self._extra is not None:
            call["extra_content"], self._extra = self._extra, None
        self._messages[-1].setdefault("tool_calls", []).append(call)
        self._callers[str(call["id"])] = self._messages[-1]

    def _add_result(self, message: dict[str, Any]) -> None:
        # chat has no message between calls and their results
        caller = self._callers.get(str(message["tool_call_id"]))
        place = len(self._messages)
        if caller is not None:
            while self._messages[place - 1] is not caller:
                place -= 1
            while place < len(self._messages) and self._messages[place]["role"] == "tool":
                place += 1
        self._messages.insert(place, message)

    def _note(self, item: Mapping[str, Any]) -> None:
        thoughts = unseal(item) or Thoughts()
        self._extra = thoughts.extra or self._extra
        self._details += thoughts.details
        texts = [
            part["text"]
            for name in ("summary", "content")
            for part in as_objects(item.get(name))
            if isinstance(part.get("text"), str)
        ]
        if thoughts.field is not None and texts:
            self._reasoning = thoughts.field, "".join(texts)

    def _give_reasoning(self) -> None:
        """Add the reasoning to the message of the assistant that is last."""
        if self._details:
            self._messages[-1].setdefault("reasoning_details", []).extend(self._details)
            self._details = []
        if self._reasoning is None:
            return
        (field, text), self._reasoning = self._reasoning, None
        message = self._messages[-1]
        message[field] = message.get(field, "") + text


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
    """Return the content of a tool's message."""
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
        case {
            "type": "input_image" | "computer_screenshot",
            "image_url": str(url) | {"url": str(url)},
        }:
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
    """Return the wanted form of the answer."""
    refuse_others(text, ("format", "verbosity"), "text.")
    result: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        result["verbosity"] = text["verbosity"]
    wanted = text.get("format") or {}
    if not isinstance(wanted, dict):
        raise invalid("text.format", "must be an object")
    wanted = dict(wanted)
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
