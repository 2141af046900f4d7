"""What costs more than tokens is refused by name, unless the model lists it; all else passes."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.bounds import OPEN_TOKENS
from gateway_core.llm.formats.calls import Format
from gateway_core.llm.service import price_call
from tests.fakes.llm_calls import MODEL, read

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
NOW = datetime(2026, 11, 23, tzinfo=UTC)
UNPRICED: list[tuple[Format, dict[str, Any], str, str]] = [
    (C, {"service_tier": "priority"}, "service_tier", "service_tier"),
    (C, {"service_tier": 7}, "service_tier", "service_tier"),
    (C, {"models": ["a", "b"]}, "models", "models"),
    (C, {"plugins": [{"id": "web"}]}, "plugins", "plugins"),
    (C, {"provider": {"order": ["dear"]}}, "provider", "provider"),
    (C, {"web_search_options": {"search_context_size": "high"}}, "web_search_options", "…"),
    (C, {"web_search_options": {}}, "web_search_options", "web_search_options"),
    (C, {"search_parameters": {}}, "search_parameters", "search_parameters"),
    (C, {"modalities": ["text", "audio"]}, "modalities", "modalities"),
    (C, {"tools": [{"type": "browser_search"}]}, "browser_search", "tools"),
    (R, {"service_tier": "priority"}, "service_tier", "service_tier"),
    (R, {"tools": [{"type": "web_search"}]}, "web_search", "tools"),
    (
        R,
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
        "web_search",
        "tools",
    ),
    (
        R,
        {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]},
        "web_search",
        "input",
    ),
    (
        R,
        {"input": [{"type": "tool_search_output", "tools": [{"type": "image_generation"}]}]},
        "image_generation",
        "input",
    ),
    (R, {"tools": [{"type": "mcp", "server_url": "https://x"}]}, "mcp", "tools"),
    (R, {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "shell", "…"),
    (G, {"serviceTier": "PRIORITY"}, "service_tier", "serviceTier"),
    (G, {"tools": [{"googleSearch": {}}]}, "googleSearch", "tools"),
    (G, {"tools": [{"google_search": {}}]}, "googleSearch", "tools"),
    (
        G,
        {"generation_config": {"response_modalities": ["IMAGE"]}},
        "modalities",
        "generationConfig",
    ),
]
PRICED: list[tuple[Format, dict[str, Any]]] = [
    (C, {"service_tier": "auto", "modalities": ["text"], "models": [], "provider": None}),
    (C, {"enable_search": False, "web_search_options": None, "preset": ""}),
    (C, {"service_tier": "flex", "tools": [{"type": "function"}, {"type": "custom"}]}),
    (C, {"vendor": {"a": 1}, "top_k": 5, "chat_template_kwargs": {"enable_thinking": False}}),
    (R, {"tools": [{"type": "custom"}, {"type": "shell", "environment": {"type": "local"}}]}),
    (G, {"tools": [{"functionDeclarations": []}, {"googleSearch": None}]}),
    (G, {"generationConfig": {"responseModalities": ["TEXT"]}}),
]


@pytest.mark.parametrize(("format_", "changes", "name", "param"), UNPRICED)
def test_feature_that_costs_more_than_tokens_is_refused_unless_the_model_lists_it(
    format_: Format, changes: dict[str, Any], name: str, param: str
) -> None:
    call = read(format_, **changes)
    with pytest.raises(InvalidRequest) as caught:
        price_call(call, MODEL, lambda: NOW)
    assert caught.value.code == "unsupported_parameter"
    assert caught.value.param == (param if param != "…" else next(iter(changes)))
    assert name in caught.value.message
    offered = replace(MODEL, unpriced=frozenset({name}))
    # what a tool of the provider adds to the prompt is unknown
    assert price_call(call, offered, lambda: NOW).micros > OPEN_TOKENS


def test_refusal_names_the_tool_beside_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        price_call(read(C, tools=[{"type": "web_search"}]), MODEL, lambda: NOW)
    assert caught.value.message == "tools[0] (web_search) is not offered for this model."
    with pytest.raises(InvalidRequest) as caught:
        price_call(read(G, tools=[{"googleSearch": {}}]), MODEL, lambda: NOW)
    assert caught.value.message == "tools[0].googleSearch is not offered for this model."


@pytest.mark.parametrize(("format_", "changes"), PRICED)
def test_request_without_such_a_feature_is_reserved_at_the_price_of_its_tokens(
    format_: Format, changes: dict[str, Any]
) -> None:
    assert price_call(read(format_, **changes), MODEL, lambda: NOW).micros < 5_000


def test_prediction_and_every_choice_are_reserved_like_output() -> None:
    plain = price_call(read(C), MODEL, lambda: NOW).output_bound
    prediction = {"type": "content", "content": "x" * 1000}
    predicted = price_call(read(C, prediction=prediction, n=2), MODEL, lambda: NOW).output_bound
    assert plain == 100
    assert predicted > 2 * 1100
