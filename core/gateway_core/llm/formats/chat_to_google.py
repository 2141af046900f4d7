"""Chat requests for a provider that speaks Google's format."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.chat_message import read_arguments
from gateway_core.llm.formats.media import is_media, list_images, write_image
from gateway_core.llm.formats.requests import invalid, read_limit
from gateway_core.llm.formats.thoughts import read_signature
from gateway_core.llm.formats.translation import (
    IGNORED,
    find_word,
    is_in_subset,
    join_texts,
    leave_out,
    list_items,
    refuse,
    refuse_others,
    split_data_url,
    to_result,
)
from gateway_core.llm.unpriced import CHAT_FIELDS

_CONFIG = {
    "frequency_penalty": "frequencyPenalty",
    "max_completion_tokens": "maxOutputTokens",
    "n": "candidateCount",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "topK",
    "top_p": "topP",
}
_HARMLESS = frozenset(
    {
        "frequency_penalty_range",
        "include_reasoning",
        "length_penalty",
        "min_p",
        "mirostat",
        "prediction",
        "reasoning_format",
        "repetition_penalty",
        "top_a",
        "typical_p",
        "verbosity",
    }
)
"""Fields without which the answer means the same: sampling, speed, and how much it says."""
_KNOWN = IGNORED | {
    *_CONFIG,
    *_HARMLESS,
    "enable_thinking",
    "image_config",
    "max_tokens",
    "messages",
    "modalities",
    "parallel_tool_calls",
    "reasoning",
    "reasoning_effort",
    "response_format",
    "stop",
    "thinking",
    "thinking_budget",
    "tool_choice",
    "tools",
}
_MODALITIES = {"image": "IMAGE", "text": "TEXT"}
_PICTURE = {"aspect_ratio": "aspectRatio", "image_size": "imageSize"}
_MODES = {"none": "NONE", "auto": "AUTO", "required": "ANY"}
_THINKING_BUDGETS = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24_576,
    "xhigh": 24_576,
    "max": 24_576,
}
"""Google's own equivalents of `reasoning_effort`, in tokens."""
_THINKING = {"adaptive": None, "disabled": 0, "enabled": None}
"""Budgets of the `thinking` of some clients; None where its own field says it."""
_REASONING = ("effort", "enabled", "exclude", "max_tokens", "summary")
_EMPTY = frozenset(
    {"$schema", "additionalProperties", "description", "properties", "required", "title", "type"}
)
"""Keywords that say nothing of parameters where there are none."""


def to_google(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Return the generateContent body of a valid chat body.

    Adds to `dropped` the fields that are left out. InvalidRequest names what cannot be translated.
    """
    refuse_others(body, _KNOWN)
    leave_out(body, _HARMLESS, dropped)
    for name in CHAT_FIELDS & body.keys():
        # an empty object turns a search on
        if body[name] == {}:
            raise refuse(name)
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for place, message in _order_results(body["messages"]):
        _add_message(message, f"messages[{place}]", system, contents, names)
    if not contents:
        # Google answers no instruction alone
        contents, system = [{"role": "user", "parts": system}], []
    result: dict[str, Any] = {"contents": contents}
    if system:
        result["systemInstruction"] = {"parts": system}
    config = _to_config(body)
    if config:
        result["generationConfig"] = config
    declarations = [
        _to_declaration(tool, f"tools[{place}]")
        for place, tool in enumerate(list_items(body.get("tools"), "tools"))
    ]
    choice, allowed = _read_choice(body.get("tool_choice"))
    if allowed is not None:
        declarations = [each for each in declarations if each["name"] in allowed]
    if declarations:
        result["tools"] = [{"functionDeclarations": declarations}]
        if choice is not None:
            result["toolConfig"] = {"functionCallingConfig": _to_calling_config(choice)}
    return result


def _order_results(messages: list[Any]) -> Iterator[tuple[int, Any]]:
    """Messages, each with its place; results of parallel calls in the order of the calls.

    Without ids Google tells the results of one function apart by their order.
    """
    order: dict[str, int] = {}
    for is_result, group in groupby(
        enumerate(messages), lambda each: _find_role(each[1]) == "tool"
    ):
        if is_result:
            yield from sorted(
                group, key=lambda each: order.get(str(each[1].get("tool_call_id")), len(order))
            )
            continue
        for place, message in group:
            for call in as_objects(as_object(message).get("tool_calls")):
                order[str(call.get("id"))] = len(order)
            yield place, message


def _find_role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _add_message(
    message: Any,
    path: str,
    system: list[dict[str, Any]],
    contents: list[dict[str, Any]],
    names: dict[str, str],
) -> None:
    """Add a message to the system's texts or to the contents; `names` has functions by call."""
    if not isinstance(message, dict):
        raise invalid(path, "must be an object")
    content = message.get("content")
    match message.get("role"):
        case "system" | "developer":
            media = _list_media(content, f"{path}.content")
            system.append({"text": join_texts(_drop_media(content), f"{path}.content")})
            if media:
                contents.append({"role": "user", "parts": media})
        case "user":
            contents.append({"role": "user", "parts": _to_parts(content, f"{path}.content")})
        case "assistant":
            parts = _to_model_parts(message, path, names)
            # Google wants the calls of a turn right after what they answer
            if contents and contents[-1]["role"] == "model":
                contents[-1]["parts"] += parts
            else:
                contents.append({"role": "model", "parts": parts})
        case "tool" | "function" as role:
            name = (
                message.get("name")
                if role == "function"
                else names.get(str(message.get("tool_call_id")))
            )
            if not isinstance(name, str):
                raise invalid(f"{path}.tool_call_id", "names no earlier tool call")
            media = _list_media(content, f"{path}.content")
            result = to_result(join_texts(_drop_media(content), f"{path}.content"))
            # models that know no parts in a result see what stands beside it
            parts = [{"functionResponse": {"name": name, "response": result}}, *media]
            # results of parallel calls have to be in one content
            if contents and "functionResponse" in contents[-1]["parts"][0]:
                contents[-1]["parts"] += parts
            else:
                contents.append({"role": "user", "parts": parts})
        case _:
            raise invalid(f"{path}.role", "must be system, developer, user, assistant or tool")


def _to_parts(content: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not content:
        return [{"text": join_texts(content, path)}]
    return [_to_part(part, f"{path}[{place}]") for place, part in enumerate(content)]


def _list_media(content: Any, path: str) -> list[dict[str, Any]]:
    """Return the parts of a message of another role than the user's that are no text."""
    if not isinstance(content, list):
        return []
    return [
        _to_part(part, f"{path}[{place}]") for place, part in enumerate(content) if is_media(part)
    ]


def _drop_media(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [part for part in content if not is_media(part)]


def _to_part(part: Any, path: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"text": text}
        case {"type": "image_url", "image_url": {"url": url} | str(url)}:
            media_type, data = split_data_url(url, f"{path}.image_url.url")
        case {"type": "file", "file": {"file_data": url}}:
            media_type, data = split_data_url(url, f"{path}.file.file_data")
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            media_type = f"audio/{kind}"
        case _:
            raise refuse(path)
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _to_model_parts(
    message: Mapping[str, Any], path: str, names: dict[str, str]
) -> list[dict[str, Any]]:
    if message.get("function_call") or message.get("audio"):
        raise refuse(f"{path}.{'function_call' if message.get('function_call') else 'audio'}")
    parts: list[dict[str, Any]] = []
    content = message.get("content") or message.get("refusal")
    text = join_texts(_drop_media(content), f"{path}.content")
    if text:
        parts.append({"text": text})
    parts += _list_media(content, f"{path}.content")
    # in whatever form the provider that drew them has them
    drawn = [write_image(url) for url in list_images(message)]
    parts += _list_media(drawn, f"{path}.images")
    for place, call in enumerate(list_items(message.get("tool_calls"), f"{path}.tool_calls")):
        function = as_object(as_object(call).get("function"))
        name = function.get("name")
        if not isinstance(name, str):
            raise refuse(f"{path}.tool_calls[{place}]")
        names[str(call.get("id"))] = name
        arguments = read_arguments(function.get("arguments"))
        if arguments is None:
            # of a call that was cut off; it was never made
            arguments = {"arguments": str(function["arguments"])}
        part: dict[str, Any] = {"functionCall": {"name": name, "args": arguments}}
        signature = read_signature(call)
        if signature is not None:
            part["thoughtSignature"] = signature
        parts.append(part)
    return parts or [{"text": ""}]


def _to_config(body: Mapping[str, Any]) -> dict[str, Any]:
    config = {google: body[chat] for chat, google in _CONFIG.items() if body.get(chat) is not None}
    if "maxOutputTokens" not in config and body.get("max_tokens") is not None:
        config["maxOutputTokens"] = body["max_tokens"]
    stop = body.get("stop")
    if stop:
        config["stopSequences"] = [stop] if isinstance(stop, str) else stop
    modalities = list_items(body.get("modalities"), "modalities")
    if modalities not in ([], ["text"]):
        config["responseModalities"] = [
            find_word(_MODALITIES, word, f"modalities[{place}]")
            for place, word in enumerate(modalities)
        ]
    picture = as_object(body.get("image_config"))
    refuse_others(picture, _PICTURE, "image_config.")
    if picture:
        config["imageConfig"] = {
            google: picture[chat] for chat, google in _PICTURE.items() if picture.get(chat)
        }
    budget = _find_budget(body)
    if budget is not None:
        config["thinkingConfig"] = {"thinkingBudget": budget}
    wanted = body.get("response_format") or {}
    if not isinstance(wanted, dict):
        raise invalid("response_format", "must be an object")
    match wanted.get("type", "text"):
        case "text":
            pass
        case "json_object":
            config["responseMimeType"] = "application/json"
        case "json_schema":
            schema = as_object(wanted.get("json_schema")).get("schema") or {}
            config["responseMimeType"] = "application/json"
            config["responseSchema" if is_in_subset(schema) else "responseJsonSchema"] = schema
        case _:
            raise refuse("response_format.type")
    return config


def _find_budget(body: Mapping[str, Any]) -> int | None:
    """Return the tokens of thinking in several clients' words; -1 where the model chooses."""
    effort, thinking = body.get("reasoning_effort"), as_object(body.get("thinking"))
    if effort is not None:
        return find_word(_THINKING_BUDGETS, effort, "reasoning_effort")
    if thinking:
        budget = find_word(_THINKING, thinking.get("type"), "thinking.type")
        if budget is not None:
            return budget
        return read_limit(thinking, "budget_tokens", within="thinking") or -1
    reasoning = as_object(body.get("reasoning"))
    refuse_others(reasoning, _REASONING, "reasoning.")
    if reasoning.get("enabled") is False or body.get("enable_thinking") is False:
        return 0
    if reasoning.get("effort") is not None:
        return find_word(_THINKING_BUDGETS, reasoning["effort"], "reasoning.effort")
    budget = read_limit(reasoning, "max_tokens", within="reasoning")
    given = body.get("thinking_budget")
    # 0 turns it off, -1 leaves the choice to the model
    is_word = type(given) is int and given in (0, -1)
    return budget or (given if is_word else read_limit(body, "thinking_budget"))


def _to_declaration(tool: Any, path: str) -> dict[str, Any]:
    function = as_object(as_object(tool).get("function"))
    if as_object(tool).get("type") != "function":
        raise refuse(path)
    if not isinstance(function.get("name"), str):
        raise invalid(f"{path}.function.name", "must be a string")
    declaration = {
        name: function[name] for name in ("name", "description") if function.get(name) is not None
    }
    schema = function.get("parameters")
    if schema and not _is_empty(schema):
        is_plain = is_in_subset(schema) and schema.get("type") == "object"
        declaration["parameters" if is_plain else "parametersJsonSchema"] = schema
    return declaration


def _is_empty(schema: Any) -> bool:
    """Return whether a function has no parameters: Google refuses an object without properties."""
    return (
        as_object(schema).get("type") == "object"
        and not schema.get("properties")
        and schema.keys() <= _EMPTY
        and not schema.get("additionalProperties")
    )


def _read_choice(choice: Any) -> tuple[Any, frozenset[str] | None]:
    """Return a `tool_choice`, and the functions that it allows besides; None for all of them."""
    match choice:
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(tools), **rest}}:
            functions = (as_object(each.get("function")) for each in as_objects(tools))
            return rest.get("mode", "auto"), frozenset(str(each.get("name")) for each in functions)
        case _:
            return choice, None


def _to_calling_config(choice: Any) -> dict[str, Any]:
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return {"mode": "ANY", "allowedFunctionNames": [name]}
        case _:
            return {"mode": find_word(_MODES, choice, "tool_choice")}
