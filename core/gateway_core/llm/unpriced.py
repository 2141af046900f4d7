"""Fields and tools of requests that cost more than the tokens of a model's price.

A provider bills them by the call, at another rate, or as another model, which no reservation
covers. Unless the model lists them in `spec.unpriced`, they are refused; tools that the provider
runs are left out where the client has tools of its own to go on with. All others are forwarded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A field or tool by the name under which a model lists it; `path` leads to it in the body.

    `tool` is the place of a tool among the tools.
    """

    name: str
    path: str
    tool: int | None = None


USUAL_TIERS = frozenset({"auto", "default", "flex", "standard"})
"""Values of `service_tier` that cost at most the usual price."""

CHAT_FIELDS = frozenset(
    {
        "enable_search",
        "fallbacks",
        "models",
        "plugins",
        "preset",
        "provider",
        "search_parameters",
        "web_search",
        "web_search_options",
    }
)
"""They call other models or add searches, at aggregators or single providers."""

_OFF: tuple[Any, ...] = (None, False, "", [])
UNPRICED_FIELDS = frozenset({*CHAT_FIELDS, "input", "modalities", "service_tier", "tools"})
"""Fields of which any may ask for more than tokens."""
_TEXT = frozenset({"text", "modality_unspecified"})
_CLIENT_TOOLS = frozenset(
    {
        "apply_patch",
        "computer",
        "computer_use_preview",
        "custom",
        "function",
        "local_shell",
        "namespace",
        "tool_search",
    }
)
"""Types of tools that the client runs: they cost their tokens alone."""
_ADDING_ITEMS = frozenset({"additional_tools", "tool_search_output"})
"""Types of items in the input of Responses that bring further tools."""
_CHOSEN_TOOLS = frozenset({"mcp"})
"""Types of tools of the provider that stand for the client's own."""
_GOOGLE_CLIENT_TOOLS = frozenset({"computerUse", "functionDeclarations"})


def find_in_openai(body: Mapping[str, Any]) -> Iterator[Unpriced]:
    """Yield what a Chat Completions or Responses body asks for beyond its tokens."""
    yield from _find_tier(body.get("service_tier"), "service_tier")
    for name in sorted(CHAT_FIELDS & body.keys()):
        # an empty object turns a search on with its defaults
        if body[name] not in _OFF:
            yield Unpriced(name, name)
    yield from _find_modalities(body.get("modalities"), "modalities")
    for path, tool, place in list_tools(body):
        kind = find_provider_tool(tool)
        if kind is not None:
            yield Unpriced(kind, path, place)


def list_tools(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], int | None]]:
    """Yield the tools of an OpenAI body with their paths, also in namespaces and in its input.

    The place is that of a tool among the body's own.
    """
    tools = body.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        for path, inner in _list_inner(tool, f"tools[{place}]"):
            yield path, inner, place if inner is tool else None
    items = body.get("input")
    for place, item in enumerate(items if isinstance(items, list) else ()):
        found = item.get("tools") if isinstance(item, dict) else None
        if isinstance(found, list) and item.get("type") in _ADDING_ITEMS:
            for index, tool in enumerate(found):
                for path, inner in _list_inner(tool, f"input[{place}].tools[{index}]"):
                    yield path, inner, None


def _list_inner(tool: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(tool, dict):
        return
    yield path, tool
    inner = tool.get("tools") if tool.get("type") == "namespace" else None
    for place, each in enumerate(inner if isinstance(inner, list) else ()):
        if isinstance(each, dict):
            yield f"{path}.tools[{place}]", each


def find_provider_tool(tool: Any) -> str | None:
    """Return the type of one of OpenAI's tools that the provider runs; None of any other."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    environment = tool.get("environment") if isinstance(tool, dict) else None
    is_local = isinstance(environment, dict) and environment.get("type") == "local"
    return kind if isinstance(kind, str) and kind not in _CLIENT_TOOLS and not is_local else None


def find_in_google(tier: Any, modalities: Any, tools: Iterable[Any]) -> Iterator[Unpriced]:
    """Yield what a generateContent body asks for beyond its tokens; the keys of tools in camelCase.

    `tier` is its `serviceTier`, `modalities` its `generationConfig.responseModalities`.
    """
    yield from _find_tier(tier, "serviceTier")
    yield from _find_modalities(modalities, "generationConfig.responseModalities")
    for place, tool in enumerate(tools):
        for name, value in tool.items() if isinstance(tool, dict) else ():
            if name not in _GOOGLE_CLIENT_TOOLS and value is not None:
                yield Unpriced(name, f"tools[{place}].{name}", place)


def leave_out_tools(
    body: Mapping[str, Any], features: Iterable[Unpriced]
) -> Mapping[str, Any] | None:
    """Return the body without tools that the provider runs; None if the client depends on them.

    It does where `features` has another feature, where it has no tools of its own, where it
    forces the choice of such a tool, and where the tool is a server that it names.
    """
    named: dict[int, set[str]] = {}
    for feature in features:
        if feature.tool is None or feature.name in _CHOSEN_TOOLS:
            return None
        named.setdefault(feature.tool, set()).add(feature.name)
    tools = [
        kept
        for place, tool in enumerate(body["tools"])
        if (kept := _strip(tool, named[place]) if place in named else tool)
    ]
    if not any(map(_is_client_tool, tools)):
        return None
    names = set().union(*named.values())
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") in names:
            return None
        if isinstance(choice.get("tools"), list):
            allowed = [tool for tool in choice["tools"] if find_provider_tool(tool) not in names]
            if not allowed:
                return None
            body = {**body, "tool_choice": {**choice, "tools": allowed}}
    return {**body, "tools": tools}


def _strip(tool: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the tool without what `names` has: one of Google's may be several tools."""
    if tool.get("type") in names:
        return {}
    spelled = {name.lower() for name in names}
    return {
        name: value for name, value in tool.items() if name.replace("_", "").lower() not in spelled
    }


def _is_client_tool(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    if "type" in tool:
        return find_provider_tool(tool) is None
    return any(tool.get(name) for name in ("functionDeclarations", "function_declarations"))


def _find_tier(tier: Any, path: str) -> Iterator[Unpriced]:
    if tier is not None and (not isinstance(tier, str) or tier.lower() not in USUAL_TIERS):
        yield Unpriced("service_tier", path)


def _find_modalities(value: Any, path: str) -> Iterator[Unpriced]:
    asked = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str) and item.lower() in _TEXT for item in asked):
        yield Unpriced("modalities", path)
