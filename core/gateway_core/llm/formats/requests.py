"""Validation of chat, Responses and generateContent requests (contract §7.2, §7.3, §7.5, §8.4).

Only what the contract names is validated; all other fields are forwarded. Errors carry the
top-level field as their param and the full path in their message.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.bounds import PromptBound
from gateway_core.llm.formats.calls import (
    FileReference,
    Format,
    LlmCall,
    as_object,
    encode_body,
    find_field,
    show_path,
    unsupported,
)
from gateway_core.llm.provider_state import (
    check_file_uri,
    check_items,
    check_messages,
    check_tools,
)
from gateway_core.llm.unpriced import UNPRICED_FIELDS, find_in_google, find_in_openai

MOST_LIMIT = 100_000_000
"""Largest limit of output tokens."""
MOST_CHOICES = 128
_MOST_MODEL = 253
_OPENING = frozenset({"chat_template", "media_io_kwargs", "mm_processor_kwargs"})
"""Fields of self-hosted servers by which a prompt has more tokens than follow from its bytes."""
_NOTHING_KEPT = "is not supported: nothing is stored here. Send the whole conversation as input"
_CHAT_LIMITS = frozenset({"max_completion_tokens", "max_tokens", "n", "best_of"})
_SNAKE = re.compile(r"_([a-z])")


def read_chat(body: Mapping[str, Any], size: int) -> LlmCall:
    """Return the call of a Chat Completions body of `size` bytes. InvalidRequest (§7.2)."""
    model_id = _read_model(body)
    messages = _read_array(body, "messages")
    stream = _read_flag(body, "stream")
    include_usage = False
    options = body.get("stream_options")
    if options is not None:
        if not isinstance(options, dict):
            raise mistyped("stream_options", "must be an object")
        if not stream:
            raise invalid("stream_options", "is allowed only where stream is true")
        include_usage = _read_flag(options, "include_usage", within="stream_options")
    check_messages(messages)
    bound = PromptBound(size, len(messages))
    files: list[FileReference] = []
    # pictures that a model drew come back as `images`
    for path, part in list_parts("messages", messages, ("content", "images")):
        match part.get("type"):
            case "image_url":
                image = part.get("image_url")
                bound.add_image(image.get("url") if isinstance(image, dict) else image)
            case "text" | "refusal":
                pass
            case "input_audio":
                bound.add_file(as_object(part.get("input_audio")).get("data"))
            case "file":
                file = as_object(part.get("file"))
                reference = _read_file_id(file, (*path, "file"))
                if reference is None:
                    bound.add_file(file.get("file_data"))
                else:
                    files.append(reference)
            case _:
                # of a vendor: perhaps a video that the provider fetches
                bound.add_file()
    max_output, choices = None, 1
    if not _CHAT_LIMITS.isdisjoint(body):
        # a server may know one of the limits alone, so the larger one binds
        limits = (read_limit(body, "max_completion_tokens"), read_limit(body, "max_tokens"))
        max_output = max(limits[0] or 0, limits[1] or 0) or None
        numbers = (read_limit(body, "n", MOST_CHOICES), read_limit(body, "best_of", MOST_CHOICES))
        choices = max(numbers[0] or 1, numbers[1] or 1)
    prediction = body.get("prediction")
    return LlmCall(
        Format.CHAT,
        model_id,
        stream,
        body,
        **_close_openai(body, bound, ("tools", "functions")),
        max_output=max_output,
        choices=choices,
        predicted=len(encode_body({"": prediction})) if prediction else 0,
        include_usage=include_usage,
        files=tuple(files),
    )


def read_responses(body: Mapping[str, Any], size: int) -> LlmCall:
    """Return the call of a Responses body of `size` bytes. InvalidRequest (§7.3, §7.5)."""
    model_id = _read_model(body)
    given = body.get("input")
    if given is None:
        raise missing("input")
    if not isinstance(given, str | list):
        raise mistyped("input", "must be a string or an array")
    if given == []:
        raise invalid("input", "must not be empty")
    stream = _read_flag(body, "stream")
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name) is not None:
            raise unsupported(name, name, _NOTHING_KEPT)
    if _read_flag(body, "background"):
        raise unsupported("background", "background")
    check_tools(body)
    bound = PromptBound(size, len(given) if isinstance(given, list) else 1)
    files: list[FileReference] = []
    if isinstance(given, list):
        check_items(given)
        for path, part in list_parts("input", given, ("content", "output")):
            reference = _read_responses_part(part, path, bound)
            files += [reference] if reference else []
        for item in given:
            if isinstance(item, dict) and item.get("type") == "image_generation_call":
                result = item.get("result")
                bound.add_inline_image(len(result) if isinstance(result, str) else 0)
    return LlmCall(
        Format.RESPONSES,
        model_id,
        stream,
        body,
        **_close_openai(body, bound, ("tools",)),
        max_output=read_limit(body, "max_output_tokens"),
        files=tuple(files),
    )


def read_generate(
    body: Mapping[str, Any], size: int, *, model_id: str, stream: bool, event_stream: bool = True
) -> LlmCall:
    """Return the call of a generateContent body of `size` bytes; the rest is in its URL (§8.4).

    Google accepts each field in camelCase and in snake_case. InvalidRequest.
    """
    contents = _read_array(body, "contents")
    if pick(body, "cachedContent") is not None:
        raise unsupported("cachedContent", "cachedContent")
    _check_arrays(body, contents)
    bound = PromptBound(size, len(contents))
    instruction = pick(body, "systemInstruction")
    parts = [
        *list_parts("contents", contents, ("parts",)),
        *list_parts("systemInstruction", [instruction], ("parts",)),
    ]
    for path, part in list(parts):
        # results of functions may have media parts of their own
        result = as_object(pick(part, "functionResponse"))
        parts += [((*path, *inner), media) for inner, media in list_parts("", [result], ("parts",))]
    for path, part in parts:
        file = pick(part, "fileData")
        if file is not None:
            check_file_uri(pick(as_object(file), "fileUri"), path)
            bound.add_file()
        blob = pick(part, "inlineData")
        if blob is not None:
            kind, data = pick(as_object(blob), "mimeType"), as_object(blob).get("data")
            if isinstance(kind, str) and kind.lower().startswith("image/"):
                bound.add_inline_image(len(data) if isinstance(data, str) else 0)
            else:
                bound.add_file(data)
    tools = body.get("tools") or []
    named = [
        {to_camel(name): value for name, value in tool.items()} if isinstance(tool, dict) else {}
        for tool in tools
    ]
    for place, tool in enumerate(named):
        if tool.get("fileSearch") is not None:
            raise unsupported("tools", f"tools[{place}].fileSearch")
    config = as_object(pick(body, "generationConfig"))
    unpriced = tuple(
        find_in_google(pick(body, "serviceTier"), pick(config, "responseModalities"), named)
    )
    bound.add_again(tools)
    return LlmCall(
        Format.GOOGLE,
        model_id,
        stream,
        body,
        bound.tokens,
        bound.estimate,
        has_media=bound.has_media,
        has_open_parts=bound.is_open,
        unpriced=unpriced,
        max_output=read_limit(config, "maxOutputTokens", within="generationConfig"),
        choices=read_limit(config, "candidateCount", MOST_CHOICES, within="generationConfig") or 1,
        event_stream=event_stream,
    )


def pick(body: Mapping[str, Any], name: str) -> Any:
    """Return the field with a camelCase name of a Google object, which may be in snake_case.

    InvalidRequest where it is there twice: a provider might read the other one.
    """
    other = to_snake(name)
    if other == name:
        return body.get(name)
    if name in body and other in body:
        raise invalid(name, f"is given twice, also as {other}")
    return body.get(name, body.get(other))


@cache
def to_snake(name: str) -> str:
    """Return a camelCase name in snake_case; of a field that the gateway knows, as all are kept."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def to_camel(name: str) -> str:
    """Return a snake_case name in camelCase."""
    return _SNAKE.sub(lambda found: found[1].upper(), name)


def read_limit(
    holder: Mapping[str, Any], name: str, most: int = MOST_LIMIT, *, within: str | None = None
) -> int | None:
    """Return the positive whole number under `name`, which a float may hold; None without one.

    InvalidRequest for anything else: a provider might read it as a larger one than is reserved.
    """
    value = pick(holder, name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    path, param = (f"{within}.{name}", within) if within else (name, name)
    if type(value) is not int:
        raise InvalidRequest(f"{path} must be an integer.", code="invalid_type", param=param)
    if not 1 <= value <= most:
        raise InvalidRequest(f"{path} must be 1 to {most}.", param=param)
    return value


def missing(name: str) -> InvalidRequest:
    """Return the error of a required field that is absent."""
    return InvalidRequest(f"{name} is required.", code="missing_required_parameter", param=name)


def mistyped(name: str, problem: str) -> InvalidRequest:
    """Return the error of a field of the wrong JSON type."""
    return InvalidRequest(f"{name} {problem}.", code="invalid_type", param=name)


def invalid(path: str, problem: str) -> InvalidRequest:
    """Return the error of a value that breaks a rule; `path` begins with its top-level name."""
    return InvalidRequest(f"{path} {problem}.", param=find_field(path))


def _read_model(body: Mapping[str, Any]) -> str:
    model_id = body.get("model")
    if model_id is None:
        raise missing("model")
    if not isinstance(model_id, str):
        raise mistyped("model", "must be a string")
    if not 0 < len(model_id) <= _MOST_MODEL:
        raise invalid("model", f"must have 1 to {_MOST_MODEL} characters")
    return model_id


def _read_array(body: Mapping[str, Any], name: str) -> list[Any]:
    given = body.get(name)
    if given is None:
        raise missing(name)
    if not isinstance(given, list):
        raise mistyped(name, "must be an array")
    if not given:
        raise invalid(name, "must not be empty")
    return given


def _read_flag(body: Mapping[str, Any], name: str, *, within: str | None = None) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        path = f"{within}.{name}" if within else name
        raise InvalidRequest(
            f"{path} must be a boolean.", code="invalid_type", param=within or name
        )
    return value is True


def _check_arrays(body: Mapping[str, Any], contents: list[Any]) -> None:
    """Refuse a single object where Google has an array: it accepts both, and what is in it is
    checked in arrays alone."""
    if body.get("tools") is not None and not isinstance(body["tools"], list):
        raise mistyped("tools", "must be an array")
    instruction = pick(body, "systemInstruction")
    for place, content in enumerate([*contents, {} if instruction is None else instruction]):
        is_instruction = place == len(contents)
        name = "systemInstruction" if is_instruction else f"contents[{place}]"
        parts = content.get("parts", []) if isinstance(content, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise InvalidRequest(
                f"{name}.parts must be an array of objects.",
                code="invalid_type",
                param="systemInstruction" if is_instruction else "contents",
            )


def list_parts(
    name: str, items: list[Any], keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yield the objects in the arrays `keys` of the items of field `name`, each with its path."""
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        for key in keys:
            parts = item.get(key)
            if isinstance(parts, dict):
                # servers may read it as an array of one
                yield (name, place, key), parts
            elif isinstance(parts, list):
                for index, part in enumerate(parts):
                    if isinstance(part, dict):
                        yield (name, place, key, index), part


def _read_file_id(holder: Mapping[str, Any], path: tuple[str | int, ...]) -> FileReference | None:
    """Return the reference of an object with a `file_id`; `path` leads to the object."""
    file_id = holder.get("file_id")
    if file_id is None:
        return None
    name = str(path[0])
    if not isinstance(file_id, str):
        raise InvalidRequest(
            f"{show_path(path)}.file_id must be a string.", code="invalid_type", param=name
        )
    return FileReference(file_id, path, name)


def _read_responses_part(
    part: Mapping[str, Any], path: tuple[str | int, ...], bound: PromptBound
) -> FileReference | None:
    """Count a part of the input; its reference, if it names a file."""
    match part.get("type"):
        case "input_image" | "computer_screenshot":
            reference = _read_file_id(part, path)
            if reference is None:
                bound.add_image(part.get("image_url"))
            return reference
        case "input_file":
            reference = _read_file_id(part, path)
            if reference is None:
                bound.add_file(part.get("file_data"))
            return reference
        case str(kind) if not kind.endswith("text") and kind != "refusal":
            bound.add_file()
    return None


def _close_openai(
    body: Mapping[str, Any], bound: PromptBound, tools: tuple[str, ...]
) -> dict[str, Any]:
    """Return the fields of a call that say what its input costs."""
    for name in tools:
        if name in body:
            bound.add_again(body[name])
    unpriced = () if UNPRICED_FIELDS.isdisjoint(body) else tuple(find_in_openai(body))
    is_open = bound.is_open
    if not _OPENING.isdisjoint(body):
        is_open = is_open or any(map(body.get, _OPENING & body.keys()))
    return {
        "input_bound": bound.tokens,
        "input_estimate": bound.estimate,
        "has_media": bound.has_media,
        "has_open_parts": is_open,
        "unpriced": unpriced,
    }
