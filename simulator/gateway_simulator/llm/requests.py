"""Requests of language models in the three formats, read as one `Ask`; used by `routes`.

A body that no real provider would take is refused with InvalidInput.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from gateway_simulator.llm.model import Ask, Tool
from gateway_simulator.moderations import InvalidInput


def parse(raw: bytes) -> dict[str, Any]:
    """Return the object in a body."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise InvalidInput("The body is not valid JSON.", None, "invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidInput("The body must be an object.", None, "invalid_json")
    return body


def read_chat(body: dict[str, Any]) -> Ask:
    """Return the ask of a Chat Completions body."""
    messages = _read_list(body, "messages")
    parts = [
        (_get(message, "role"), part)
        for message in messages
        for part in _list_parts(_get(message, "content"))
    ]
    wanted = _get(body, "response_format")
    return Ask(
        model=_read_model(body),
        prompt=_find_prompt(parts),
        texts=[_get(part, "text") for _, part in parts if isinstance(_get(part, "text"), str)],
        stream=body.get("stream") is True,
        images=sum(_get(part, "type") == "image_url" for _, part in parts),
        tools=[_make_tool(_get(tool, "function")) for tool in _list_tools(body)],
        must_call=_read_choice(body.get("tool_choice")),
        has_result=_get(messages[-1], "role") == "tool",
        schema=_read_schema(wanted, _get(_get(wanted, "json_schema"), "schema")),
        most_tokens=_read_limit(body.get("max_completion_tokens") or body.get("max_tokens")),
        stops=_read_stops(body.get("stop")),
        choices=_read_limit(body.get("n")) or 1,
    )


def read_responses(body: dict[str, Any]) -> Ask:
    """Return the ask of a Responses body."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    if not items:
        raise InvalidInput("input must not be empty.", "input")
    parts = [("system", {"text": body["instructions"]})] if body.get("instructions") else []
    for item in items:
        content = _get(item, "content") or _get(item, "output")
        parts += [(_get(item, "role"), part) for part in _list_parts(content)]
    wanted = _get(_get(body, "text"), "format")
    return Ask(
        model=_read_model(body),
        prompt=_find_prompt(parts),
        texts=[_get(part, "text") for _, part in parts if isinstance(_get(part, "text"), str)],
        stream=body.get("stream") is True,
        images=sum(_get(part, "type") == "input_image" for _, part in parts),
        tools=[_make_tool(tool) for tool in _list_tools(body) if _get(tool, "name")],
        must_call=_read_choice(body.get("tool_choice")),
        has_result=_get(items[-1], "type") == "function_call_output",
        schema=_read_schema(wanted, _get(wanted, "schema")),
        most_tokens=_read_limit(body.get("max_output_tokens")),
    )


def read_generate(body: dict[str, Any], model: str, *, stream: bool) -> Ask:
    """Return the ask of a generateContent body with fields in camelCase or snake_case."""
    contents = _read_list(body, "contents")
    instruction = _pick(body, "systemInstruction")
    system = [("system", part) for part in _list(_get(instruction, "parts"))]
    parts = system + [
        (_get(content, "role") or "user", part)
        for content in contents
        for part in _list(_get(content, "parts"))
    ]
    last = _list(_get(contents[-1], "parts"))
    config = _pick(body, "generationConfig")
    calling = _pick(_pick(body, "toolConfig"), "functionCallingConfig")
    allowed = _list(_pick(calling, "allowedFunctionNames"))
    schema = _pick(config, "responseJsonSchema") or _pick(config, "responseSchema")
    is_json = _pick(config, "responseMimeType") == "application/json"
    return Ask(
        model=model,
        prompt=_find_prompt(parts),
        texts=[text for _, part in parts if (text := _find_text(part)) is not None],
        stream=stream,
        images=sum(_pick(part, "inlineData") is not None for _, part in parts),
        tools=[
            _make_tool(declaration)
            for tool in _list(body.get("tools"))
            for declaration in _list(_pick(tool, "functionDeclarations"))
            if _get(calling, "mode") != "NONE"
        ],
        must_call=(allowed[0] if allowed else "") if _get(calling, "mode") == "ANY" else None,
        has_result=any(_pick(part, "functionResponse") is not None for part in last),
        schema=schema or ({} if is_json else None),
        most_tokens=_read_limit(_pick(config, "maxOutputTokens")),
        stops=_read_stops(_pick(config, "stopSequences")),
        choices=_read_limit(_pick(config, "candidateCount")) or 1,
    )


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _pick(holder: Any, name: str) -> Any:
    """Return a field of Google's, which has a camelCase name and a snake_case one."""
    found = _get(holder, name)
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return _get(holder, snake) if found is None else found


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _list_parts(content: Any) -> Iterator[Any]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        yield from _list(content)


def _read_model(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("model must be a string.", "model", "invalid_type")
    return model


def _read_list(body: dict[str, Any], name: str) -> list[Any]:
    given = _list(body.get(name))
    if not given:
        raise InvalidInput(f"{name} must be a list that is not empty.", name)
    return given


def _read_limit(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _read_stops(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else _list(value)
    return [stop for stop in found if isinstance(stop, str)]


def _find_text(part: Any) -> str | None:
    """Return the text of a part of Google's, or the result of a function as JSON."""
    result = _pick(part, "functionResponse")
    if result is not None:
        return orjson.dumps(_get(result, "response")).decode()
    text = _get(part, "text")
    return text if isinstance(text, str) else None


def _find_prompt(parts: list[tuple[Any, Any]]) -> str:
    """Return the texts of the user, in one line."""
    texts = [_get(part, "text") for role, part in parts if role == "user"]
    return " ".join(text for text in texts if isinstance(text, str))


def _list_tools(body: dict[str, Any]) -> list[Any]:
    """Return the tools that the model may use."""
    return [] if body.get("tool_choice") == "none" else _list(body.get("tools"))


def _make_tool(function: Any) -> Tool:
    schema = _get(function, "parameters") or _pick(function, "parametersJsonSchema")
    return Tool(str(_get(function, "name")), schema if isinstance(schema, dict) else {})


def _read_choice(choice: Any) -> str | None:
    """Return the function that must be called: its name, "" for any, None for no certain one."""
    if choice == "required":
        return ""
    name = _get(_get(choice, "function"), "name") or _get(choice, "name")
    return name if isinstance(name, str) else None


def _read_schema(wanted: Any, schema: Any) -> dict[str, Any] | None:
    match _get(wanted, "type"):
        case "json_object":
            return {}
        case "json_schema":
            return schema if isinstance(schema, dict) else {}
        case _:
            return None
