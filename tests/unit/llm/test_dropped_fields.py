"""Fields that a provider's format lacks, and the function names that it refuses."""

import re
from typing import Any

import orjson
import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.names import replace_names
from tests.fakes.llm_calls import USER, exchange, read, translate
from tests.fakes.llm_streams import (
    chat_chunks,
    google_chunks,
    read_frames,
    run_stream,
    write_frames,
)

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
ODD = ["1c_probe", "-x", "a b", "a.b", "é", "x" * 65, "x" * 66, "a b", "a/b"]


def config(**fields: Any) -> dict[str, Any]:
    return {"generationConfig": fields}


def think(**fields: Any) -> dict[str, Any]:
    return config(thinkingConfig=fields)


@pytest.mark.parametrize(
    ("format_", "upstream", "changes", "dropped"),
    [
        (G, C, config(topK=5), ["generationConfig.topK"]),
        (G, C, config(top_k=5, temperature=1), ["generationConfig.topK"]),
        (G, C, config(mediaResolution="LOW"), ["generationConfig.mediaResolution"]),
        (G, C, think(thinkingBudget=0), ["generationConfig.thinkingConfig.thinkingBudget"]),
        (G, C, think(thinkingBudget=-1), []),
        (
            G,
            C,
            {"safetySettings": [{"category": "X", "threshold": "BLOCK_ONLY_HIGH"}]},
            ["safetySettings"],
        ),
        (G, C, {"safetySettings": [{"category": "X"}]}, ["safetySettings"]),
        (C, G, {"enable_thinking": True, "mirostat": 2}, ["mirostat"]),
        (C, G, {"verbosity": "low", "min_p": 0.1}, ["verbosity", "min_p"]),
        (R, G, {"text": {"verbosity": "low"}}, ["verbosity"]),
        (R, C, {"text": {"verbosity": "low"}}, []),
        (R, C, {"truncation": "auto", "max_tool_calls": 4}, ["max_tool_calls", "truncation"]),
        (R, C, {"include": ["reasoning.encrypted_content", "web_search_call.results"]}, []),
        (C, C, {"verbosity": "low", "top_k": 3}, []),
        (G, G, config(topK=5), []),
    ],
)
def test_fields_that_change_no_meaning_are_left_out_and_named(
    format_: Format, upstream: Format, changes: dict[str, Any], dropped: list[str]
) -> None:
    assert list(exchange(format_, upstream, **changes).dropped) == dropped


@pytest.mark.parametrize(
    ("budget", "effort"), [(1, "low"), (1024, "low"), (8192, "medium"), (24_576, "high")]
)
def test_thinking_budget_becomes_the_nearest_effort(budget: int, effort: str) -> None:
    assert translate(G, C, **think(thinkingBudget=budget))["reasoning_effort"] == effort


@pytest.mark.parametrize(
    ("thinking", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 2000}, 2000),
        ({"type": "disabled"}, 0),
        ({"type": "adaptive"}, -1),
    ],
)
def test_thinking_of_chat_becomes_a_budget(thinking: dict[str, Any], budget: int) -> None:
    wanted = translate(C, G, thinking=thinking)["generationConfig"]
    assert wanted == {"thinkingConfig": {"thinkingBudget": budget}}


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"reasoning": {"effort": "low", "exclude": True}}, 1024),
        ({"reasoning": {"max_tokens": 2000}}, 2000),
        ({"reasoning": {"enabled": False}}, 0),
        ({"enable_thinking": False}, 0),
        ({"enable_thinking": True, "thinking_budget": 300}, 300),
        ({"thinking_budget": 0}, 0),
        ({"thinking_budget": -1}, -1),
        ({"reasoning_effort": "max"}, 24_576),
    ],
)
def test_other_words_for_thinking_become_a_budget(fields: dict[str, Any], budget: int) -> None:
    wanted = translate(C, G, **fields)["generationConfig"]
    assert wanted == {"thinkingConfig": {"thinkingBudget": budget}}


def test_fields_that_servers_have_in_both_apis_of_openai_are_passed_on() -> None:
    fields = {"top_k": 3, "seed": 5, "stop": ["x"]}
    assert translate(R, C, **fields) | fields == translate(R, C, **fields)
    wanted = translate(R, G, **fields)["generationConfig"]
    assert wanted == {"topK": 3, "seed": 5, "stopSequences": ["x"]}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(("mode", "google"), [("auto", "AUTO"), ("required", "ANY")])
def test_allowed_tools_are_the_only_ones_declared(mode: str, google: str) -> None:
    allowed = {"mode": mode, "tools": [tool("b")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    chat = translate(C, G, tools=[tool("a"), tool("b")], tool_choice=choice)
    tools = [{"type": "function", "name": name} for name in "ab"]
    choice = {"type": "allowed_tools", "mode": mode, "tools": tools[1:]}
    responses = translate(R, G, tools=tools, tool_choice=choice)
    for body in (chat, responses):
        assert body["tools"] == [{"functionDeclarations": [{"name": "b"}]}]
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": google}}
    body = translate(R, C, tools=tools, tool_choice=choice)
    assert (body["tools"], body["tool_choice"]) == ([tool("b")], mode)


def test_reference_to_an_item_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="`store: false`"):
        read(R, input=[{"type": "item_reference", "id": "rs_1"}])


@pytest.mark.parametrize("upstream", [C, G])
def test_odd_names_become_distinct_legal_ones(upstream: Format) -> None:
    tools = [tool(name) for name in ODD]
    body, names = replace_names({"messages": [USER], "tools": tools}, upstream)
    legal = [each["function"]["name"] for each in body["tools"]]
    assert all(re.fullmatch("[A-Za-z_0-9.-]+", name) for name in legal)
    assert [names.get(name, name) for name in legal] == ODD
    assert len(set(legal)) == len(set(ODD))
    assert all(len(name) <= 64 for name in legal)


def test_odd_names_are_turned_back_in_history_choice_and_answers() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "-x", "arguments": "{}"}}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    sent = exchange(
        C, G, messages=history, tools=[tool("-x")], tool_choice=tool("-x"), stream=False
    )
    [name] = sent.names
    asked, result = sent.body["contents"][1:]
    assert asked["parts"][0]["functionCall"]["name"] == name
    assert result["parts"][0]["functionResponse"]["name"] == name
    choosing = sent.body["toolConfig"]["functionCallingConfig"]
    assert choosing["allowedFunctionNames"] == [name]
    [answer] = google_chunks("")
    answer["candidates"][0]["content"]["parts"] = [{"functionCall": {"name": name, "args": {}}}]
    completion, _ = sent.complete(orjson.dumps(answer))
    [made] = completion["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "-x"
    streamed = exchange(C, G, tools=[tool("-x")], stream=True)
    frames = read_frames(run_stream(streamed.open_stream(), [write_frames([answer])]))
    [made] = frames[0]["choices"][0]["delta"]["tool_calls"]
    assert made["function"]["name"] == "-x"


def test_odd_names_of_google_are_turned_back_from_chat() -> None:
    declared = [{"functionDeclarations": [{"name": "a.b:c"}]}]
    sent = exchange(G, C, tools=declared)
    [name] = sent.names
    assert sent.body["tools"] == [tool(name)]
    call = {"id": "c", "function": {"name": name, "arguments": "{}"}}
    answer = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    generated, _ = sent.complete(orjson.dumps(answer))
    assert generated["candidates"][0]["content"]["parts"][0]["functionCall"]["name"] == "a.b:c"
    first, last, usage = chat_chunks()
    begin = {"index": 0, "id": "c", "function": {"name": name[:4], "arguments": ""}}
    rest = {"index": 0, "function": {"name": name[4:], "arguments": "{}"}}
    chunks = [
        first | {"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}
        for piece in (begin, rest)
    ]
    wire = write_frames([first, *chunks, last, usage, b"[DONE]"])
    stream = exchange(G, C, tools=declared, stream=True).open_stream()
    parts = [
        part
        for frame in read_frames(run_stream(stream, [wire]))
        for candidate in frame["candidates"]
        for part in candidate["content"]["parts"]
    ]
    assert [part["functionCall"]["name"] for part in parts if "functionCall" in part] == ["a.b:c"]
