"""Fields and tools of requests that cost more than the tokens of a model's price.

A provider bills them by the call, at another rate, or as another model, which no reservation
covers. They are refused unless the model lists them in `spec.unpriced`. All others are forwarded.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A field or tool by the name under which a model lists it; `path` leads to it in the body."""

    name: str
    path: str


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
UNPRICED_FIELDS = frozenset({*CHAT_FIELDS, "service_tier", "modalities", "tools"})
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
_GOOGLE_CLIENT_TOOLS = frozenset({"computerUse", "functionDeclarations"})


def find_in_openai(body: Mapping[str, Any]) -> Iterator[Unpriced]:
    """What a Chat Completions or Responses body asks for beyond its tokens."""
    yield from _find_tier(body.get("service_tier"), "service_tier")
    for name in sorted(CHAT_FIELDS & body.keys()):
        # an empty object turns a search on with its defaults
        if body[name] not in _OFF:
            yield Unpriced(name, name)
    yield from _find_modalities(body.get("modalities"), "modalities")
    tools = body.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        environment = tool.get("environment") if isinstance(tool, dict) else None
        is_local = isinstance(environment, dict) and environment.get("type") == "local"
        if isinstance(kind, str) and kind not in _CLIENT_TOOLS and not is_local:
            yield Unpriced(kind, f"tools[{place}]")


def find_in_google(tier: Any, modalities: Any, tools: Iterable[Any]) -> Iterator[Unpriced]:
    """What a generateContent body asks for beyond its tokens; the keys of tools in camelCase.

    `tier` is its `serviceTier`, `modalities` its `generationConfig.responseModalities`.
    """
    yield from _find_tier(tier, "serviceTier")
    yield from _find_modalities(modalities, "generationConfig.responseModalities")
    for place, tool in enumerate(tools):
        for name, value in tool.items() if isinstance(tool, dict) else ():
            if name not in _GOOGLE_CLIENT_TOOLS and value is not None:
                yield Unpriced(name, f"tools[{place}].{name}")


def _find_tier(tier: Any, path: str) -> Iterator[Unpriced]:
    if tier is not None and (not isinstance(tier, str) or tier.lower() not in USUAL_TIERS):
        yield Unpriced("service_tier", path)


def _find_modalities(value: Any, path: str) -> Iterator[Unpriced]:
    asked = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str) and item.lower() in _TEXT for item in asked):
        yield Unpriced("modalities", path)
