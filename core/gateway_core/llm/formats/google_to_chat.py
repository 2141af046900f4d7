"""generateContent requests for a provider that speaks Chat Completions."""

import mimetypes
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.media import write_image
from gateway_core.llm.formats.requests import invalid, pick, to_camel
from gateway_core.llm.formats.translation import (
    find_word,
    leave_out,
    list_items,
    refuse,
    refuse_others,
    to_json_schema,
)

_CONFIG = {
    "candidateCount": "n",
    "frequencyPenalty": "frequency_penalty",
    "maxOutputTokens": "max_completion_tokens",
    "presencePenalty": "presence_penalty",
    "seed": "seed",
    "stopSequences": "stop",
    "temperature": "temperature",
    "topP": "top_p",
}
_KNOWN = frozenset(
    {
        "contents",
        "generationConfig",
        "labels",
        "model",
        "safetySettings",
        "serviceTier",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)
_HARMLESS_CONFIG = frozenset(
    {
        "audioTimestamp",
        "enableAffectiveDialog",
        "enableEnhancedCivicAnswers",
        "imageConfig",
        "mediaResolution",
        "modelSelectionConfig",
        "routingConfig",
        "speechConfig",
        "topK",
    }
)
"""Fields without which the answer means the same: sampling, and forms of what is no text."""
_KNOWN_CONFIG = frozenset(
    {
        *_CONFIG,
        *_HARMLESS_CONFIG,
        "responseJsonSchema",
        "responseMimeType",
        "responseModalities",
        "responseSchema",
        "thinkingConfig",
    }
)
_FILTERS: Mapping[str, None] = dict.fromkeys(
    (
        "BLOCK_LOW_AND_ABOVE",
        "BLOCK_MEDIUM_AND_ABOVE",
        "BLOCK_NONE",
        "BLOCK_ONLY_HIGH",
        "HARM_BLOCK_THRESHOLD_UNSPECIFIED",
        "OFF",
    )
)
_LEVELS = {
    "HIGH": "high",
    "LOW": "low",
    "MEDIUM": "medium",
    "MINIMAL": "minimal",
    "THINKING_LEVEL_UNSPECIFIED": None,
}
_BUDGETS = ((1024, "low"), (8192, "medium"))
"""Most tokens of thinking that are less than a high `reasoning_effort`."""
_MODES = {
    "ANY": "required",
    "AUTO": "auto",
    "MODE_UNSPECIFIED": "auto",
    "NONE": "none",
    "VALIDATED": "auto",
}
_MODALITIES = {"IMAGE": "image", "MODALITY_UNSPECIFIED": "text", "TEXT": "text"}
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


def to_chat(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Return the chat body, without model, of a valid generateContent body.

    Results of functions and turns of the model may have pictures. Adds to `dropped` the fields
    that are left out. InvalidRequest names what cannot be translated.
    """
    body = _to_camel_keys(body)
    refuse_others(body, _KNOWN)
    for place, setting in enumerate(as_objects(body.get("safetySettings"))):
        if setting.get("threshold") is not None:
            find_word(_FILTERS, setting["threshold"], f"safetySettings[{place}].threshold")
    # the providers of chat have filters of their own
    leave_out(body, ("safetySettings",), dropped)
    messages: list[dict[str, Any]] = []
    system = as_object(body.get("systemInstruction"))
    parts = list_items(system.get("parts"), "systemInstruction.parts")
    shown = [
        _to_part(part, f"systemInstruction.parts[{place}]")
        for place, part in enumerate(as_objects(parts))
    ]
    if shown:
        messages.append({"role": "system", "content": _join_parts(shown, "\n")})
    calls = _Calls()
    for place, content in enumerate(body["contents"]):
        if not isinstance(content, dict):
            raise invalid(f"contents[{place}]", "must be an object")
        path = f"contents[{place}].parts"
        parts = as_objects(content.get("parts"))
        if content.get("role") == "model":
            messages.append(_to_assistant(parts, path, calls))
        else:
            messages += _to_user(parts, path, calls)
    result: dict[str, Any] = {"messages": messages}
    result |= _from_config(_to_camel_keys(as_object(body.get("generationConfig"))), dropped)
    result |= _from_tools(body)
    return result


class _Calls:
    """Ids of function calls, which Google may leave out: results follow calls in order."""

    def __init__(self) -> None:
        # by function, the open ids in order; a plain dictionary would search for its first one
        # among all that were dropped before it
        self._open: dict[str, OrderedDict[str, None]] = {}
        self._count = 0

    def add(self, call: Mapping[str, Any]) -> str:
        self._count += 1
        call_id = str(call.get("id") or f"call_{self._count}")
        self._open.setdefault(str(call.get("name")), OrderedDict())[call_id] = None
        return call_id

    def take(self, response: Mapping[str, Any]) -> str | None:
        waiting = self._open.get(str(response.get("name")), OrderedDict())
        given = str(response.get("id"))
        call_id = given if given in waiting else next(iter(waiting), None)
        if call_id is not None:
            del waiting[call_id]
        return call_id


def _to_assistant(parts: list[dict[str, Any]], path: str, calls: _Calls) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    thoughts: list[str] = []
    tool_calls: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        call = pick(part, "functionCall")
        if part.get("thought") is True:
            thoughts.append(str(part.get("text") or ""))
            continue
        if isinstance(call, dict):
            arguments = orjson.dumps(as_object(call.get("args"))).decode()
            function = {"name": call.get("name"), "arguments": arguments}
            tool_calls.append({"id": calls.add(call), "type": "function", "function": function})
        else:
            shown.append(_to_part(part, f"{path}[{place}]"))
    message: dict[str, Any] = {"role": "assistant", "content": _join_parts(shown, "") or None}
    if tool_calls:
        message["tool_calls"] = tool_calls
        # some providers want it back between the steps of a turn; Google's own is signed
        if any(thoughts) and not any(pick(part, "thoughtSignature") for part in parts):
            message["reasoning_content"] = "".join(thoughts)
    elif message["content"] is None:
        message["content"] = ""
    return message


def _to_user(parts: list[dict[str, Any]], path: str, calls: _Calls) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        response = pick(part, "functionResponse")
        if not isinstance(response, dict):
            shown.append(_to_part(part, f"{path}[{place}]"))
            continue
        call_id = calls.take(response)
        if call_id is None:
            raise invalid(f"{path}[{place}]", "answers no earlier function call")
        result = {"type": "text", "text": orjson.dumps(response.get("response")).decode()}
        within = f"{path}[{place}].functionResponse.parts"
        media = [
            _to_part(item, f"{within}[{index}]")
            for index, item in enumerate(as_objects(response.get("parts")))
        ]
        content = _join_parts([result, *media], "")
        messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    if len(shown) == 1 and shown[0]["type"] == "text":
        messages.append({"role": "user", "content": shown[0]["text"]})
    elif shown or not messages:
        messages.append({"role": "user", "content": shown})
    return messages


def _join_parts(parts: list[dict[str, Any]], separator: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: a string where all parts are texts."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return separator.join(part["text"] for part in parts)


def _to_part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    blob = as_object(pick(part, "inlineData"))
    if not blob:
        file = as_object(pick(part, "fileData"))
        url = str(pick(file, "fileUri") or "")
        kind = pick(file, "mimeType") or mimetypes.guess_type(url.partition("?")[0])[0]
        if str(kind).startswith("image/"):
            return write_image(url)
        return {"type": "text", "text": _read_text(part, path)}
    kind, data = str(pick(blob, "mimeType")).lower(), blob.get("data")
    url = f"data:{kind};base64,{data}"
    if kind.startswith("image/"):
        return write_image(url)
    if kind in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO[kind]}}
    if kind == "application/pdf":
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": url}}
    raise refuse(f"{path}.inlineData.mimeType")


def _read_text(part: Any, path: str) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        names = ", ".join(part) if isinstance(part, dict) else ""
        raise refuse(f"{path}.{names}" if names else path)
    return text


def _from_config(config: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    refuse_others(config, _KNOWN_CONFIG, "generationConfig.")
    leave_out(config, _HARMLESS_CONFIG, dropped, "generationConfig.")
    result = {
        chat: config[google] for google, chat in _CONFIG.items() if config.get(google) is not None
    }
    path = "generationConfig.responseModalities"
    modalities = [
        find_word(_MODALITIES, word.upper() if isinstance(word, str) else word, f"{path}[{place}]")
        for place, word in enumerate(list_items(config.get("responseModalities"), path))
    ]
    if modalities not in ([], ["text"]):
        result["modalities"] = modalities
    thinking = _to_camel_keys(as_object(config.get("thinkingConfig")))
    # thoughts are shown beside the answer and do not change it
    known = ("includeThoughts", "thinkingBudget", "thinkingLevel")
    refuse_others(thinking, known, "generationConfig.thinkingConfig.")
    effort = _find_effort(thinking, "generationConfig.thinkingConfig", dropped)
    if effort is not None:
        result["reasoning_effort"] = effort
    schema = config.get("responseJsonSchema") or to_json_schema(config.get("responseSchema"))
    match config.get("responseMimeType"):
        case None | "text/plain":
            if schema:
                path = "generationConfig.responseMimeType"
                raise refuse(path, "must be application/json where there is a schema")
        case "application/json":
            result["response_format"] = (
                {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
                if schema
                else {"type": "json_object"}
            )
        case _:
            raise refuse("generationConfig.responseMimeType")
    return result


def _find_effort(thinking: Mapping[str, Any], path: str, dropped: list[str]) -> str | None:
    level, budget = thinking.get("thinkingLevel"), thinking.get("thinkingBudget")
    if level:
        word = level.upper() if isinstance(level, str) else level
        return find_word(_LEVELS, word, f"{path}.thinkingLevel")
    if budget is None or budget == -1:
        # the model is to choose
        return None
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise invalid(f"{path}.thinkingBudget", "must be an integer")
    if budget <= 0:
        # many models without thoughts refuse a word for none
        dropped.append(f"{path}.thinkingBudget")
        return None
    return next((word for most, word in _BUDGETS if budget <= most), "high")


def _from_tools(body: Mapping[str, Any]) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for place, given in enumerate(as_objects(body.get("tools"))):
        tool = _to_camel_keys(given)
        for name, value in tool.items():
            # an empty object turns a tool on
            if name != "functionDeclarations" and value is not None:
                raise refuse(f"tools[{place}].{name}")
        for item in as_objects(tool.get("functionDeclarations")):
            declaration = _to_camel_keys(item)
            function: dict[str, Any] = {
                name: declaration[name] for name in ("name", "description") if name in declaration
            }
            schema = declaration.get("parametersJsonSchema") or to_json_schema(
                declaration.get("parameters")
            )
            if schema:
                function["parameters"] = schema
            tools.append({"type": "function", "function": function})
    if not tools:
        return {}
    config = as_object(pick(as_object(body.get("toolConfig")), "functionCallingConfig"))
    path = "toolConfig.functionCallingConfig"
    choice = find_word(_MODES, config.get("mode") or "AUTO", f"{path}.mode")
    allowed = list_items(pick(config, "allowedFunctionNames"), f"{path}.allowedFunctionNames")
    if allowed:
        names = {name for name in allowed if isinstance(name, str)}
        tools = [tool for tool in tools if str(tool["function"].get("name")) in names]
    return {"tools": tools, "tool_choice": choice} if config else {"tools": tools}


def _to_camel_keys(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its own fields in camelCase: Google accepts both spellings."""
    return {to_camel(name): value for name, value in body.items()}
