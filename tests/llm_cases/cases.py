"""Cases of LLM calls, which the YAML files of this folder hold, and the variants of each.

docs/llm_cases.md describes the form.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
CLIENTS = ("chat", "responses", "google")
PROVIDERS = ("openai", "responses", "google")
PRICES = {"input": 2, "cached": 1, "output": 10}
"""Default prices in micro-dollars of a token."""
_CASE_KEYS = frozenset(
    {"name", "providers", "clients", "stream", "prices", "model", "provider", "turns", "upstream"}
    | {"request", "requests", "prompt", "tools", "headers", "expect", "results"}
)
_REPEATED = re.compile(r"\{\{(.+?)\*(\d+)\}\}")


@dataclass(frozen=True, slots=True)
class Variant:
    """A case for one client dialect, one kind of provider for each route, streamed or whole."""

    name: str
    case: Mapping[str, Any]
    client: str
    routes: tuple[str, ...]
    stream: bool

    @property
    def id(self) -> str:
        """Id of the test."""
        kind = "streamed" if self.stream else "whole"
        return f"{self.name}-{self.client}-at-{'+'.join(self.routes)}-{kind}".replace(" ", "_")

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        """The calls of the case, in order."""
        turns: list[Mapping[str, Any]] = self.case.get("turns") or [self.case]
        return turns

    def choose_expected(self, expected: Mapping[str, Any]) -> dict[str, Any]:
        """What this variant expects: the general part, then what its selectors add or replace."""
        selectors = {
            **{client: client == self.client for client in CLIENTS},
            **{f"at {provider}": provider in self.routes for provider in PROVIDERS},
            "streamed": self.stream,
            "whole": not self.stream,
        }
        chosen = {key: value for key, value in expected.items() if key not in selectors}
        for key, value in expected.items():
            if selectors.get(key):
                chosen |= self.choose_expected(value)
        return chosen


def load_variants() -> list[Variant]:
    """Return all variants of all cases. ValueError for a case of another form."""
    variants = [
        variant
        for path in sorted(FOLDER.glob("*.yaml"))
        for case in yaml.safe_load(path.read_text()) or []
        for variant in _list_variants(_repeat(case), path)
    ]
    ids = [variant.id for variant in variants]
    repeated = {id_ for id_ in ids if ids.count(id_) > 1}
    if repeated:
        raise ValueError(f"Cases of the same name: {sorted(repeated)}")
    return variants


def build_request(variant: Variant, turn: Mapping[str, Any], history: list[Any]) -> dict[str, Any]:
    """The client's body of a turn, without its model, after the turns that `history` has."""
    tools = turn.get("tools", variant.case.get("tools"))
    body = dict(turn.get("request") or (turn.get("requests") or {}).get(variant.client) or {})
    name = {"chat": "messages", "responses": "input", "google": "contents"}[variant.client]
    said = body.get(name, [])
    if isinstance(said, str):
        said = [_write_prompt(variant.client, said)]
    if "prompt" in turn:
        said = [*said, _write_prompt(variant.client, turn["prompt"])]
    body[name] = [*history, *said]
    if tools:
        body["tools"] = _write_tools(variant.client, tools)
    if variant.stream and variant.client != "google":
        body["stream"] = True
        if variant.client == "chat":
            body.setdefault("stream_options", {"include_usage": True})
    return body


def write_results(client: str, calls: list[dict[str, Any]], results: Mapping[str, Any]) -> Any:
    """Messages with the results of the calls, by the name of the function."""
    match client:
        case "chat":
            return [
                {"role": "tool", "tool_call_id": call["id"], "content": results[call["name"]]}
                for call in calls
            ]
        case "responses":
            return [
                {
                    "type": "function_call_output",
                    "call_id": call["id"],
                    "output": results[call["name"]],
                }
                for call in calls
            ]
    parts = []
    for call in calls:
        result = results[call["name"]]
        response = result if isinstance(result, dict) else {"result": result}
        named = {"id": call["id"]} if call["id"] else {}
        parts.append({"functionResponse": {**named, "name": call["name"], "response": response}})
    return [{"role": "user", "parts": parts}]


def _list_variants(case: dict[str, Any], path: Path) -> Iterator[Variant]:
    unknown = set(case) - _CASE_KEYS
    if unknown:
        raise ValueError(f"{path.name}: {case.get('name')}: unknown keys {sorted(unknown)}")
    for provider, client, stream in product(
        case.get("providers", PROVIDERS),
        case.get("clients", CLIENTS),
        case.get("stream", [True, False]),
    ):
        routes = tuple(provider) if isinstance(provider, list) else (provider,)
        yield Variant(f"{path.stem}-{case['name']}", case, client, routes, stream)


def _repeat(value: Any) -> Any:
    """The value with `{{x*3}}` in its strings written out as `xxx`."""
    if isinstance(value, str):
        return _REPEATED.sub(lambda found: found[1] * int(found[2]), value)
    if isinstance(value, list):
        return [_repeat(item) for item in value]
    if isinstance(value, dict):
        return {key: _repeat(item) for key, item in value.items()}
    return value


def _write_prompt(client: str, text: str) -> dict[str, Any]:
    if client == "google":
        return {"role": "user", "parts": [{"text": text}]}
    return {"role": "user", "content": text}


def _write_tools(client: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools in the client's dialect; those that have a `type` are already written."""
    if client == "google":
        return [{"functionDeclarations": tools}]
    if client == "responses":
        return [
            tool if "type" in tool else {"type": "function", "strict": False, **tool}
            for tool in tools
        ]
    return [tool if "type" in tool else {"type": "function", "function": tool} for tool in tools]
