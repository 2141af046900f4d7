"""Tools of agents that speak Responses, at providers of chat and of Google."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import Format
from gateway_core.llm.service import price_call
from tests.fakes.llm_calls import MODEL, USER, exchange, read, translate
from tests.fakes.llm_streams import chat_chunks, read_frames, run_stream, write_frames

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: patch"},
}
SPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "…",
    "tools": [FUNCTION | {"name": "spawn"}, {"type": "custom", "name": "look"}],
}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": SCHEMA}
LOCAL_SHELL = {"type": "shell", "environment": {"type": "local"}}
TOOLS = [FUNCTION, PATCH, SPACE, SEARCH]


def call(name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"c{index}", "type": "function", "function": function}


def answer(*calls: dict[str, Any], tools: Any = TOOLS) -> list[dict[str, Any]]:
    """The items of an answer with these calls, after the strict oracle has read them."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    document, _ = exchange(R, C, tools=tools).complete(orjson.dumps(whole))
    Response.model_validate(document)
    items: list[dict[str, Any]] = document["output"]
    return items


def test_tools_of_an_agent_become_functions_with_distinct_names() -> None:
    functions = [tool["function"] for tool in translate(R, C, tools=TOOLS)["tools"]]
    names = [function["name"] for function in functions]
    assert names == ["look", "apply_patch", "agents__spawn", "agents__look", "tool_search"]
    custom = functions[1]
    assert custom["parameters"]["required"] == ["input"]
    assert "start: patch" in custom["description"]
    google = translate(R, G, tools=TOOLS)["tools"][0]["functionDeclarations"]
    assert [declaration["name"] for declaration in google] == names


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("look", '{"x":"1"}', {"type": "function_call", "name": "look", "arguments": '{"x":"1"}'}),
        (
            "apply_patch",
            '{"input": "*** Begin"}',
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin"},
        ),
        (
            "agents__spawn",
            "{}",
            {"type": "function_call", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        ),
        (
            "agents__look",
            '{"input":"a"}',
            {"type": "custom_tool_call", "name": "look", "namespace": "agents", "input": "a"},
        ),
        (
            "tool_search",
            '{"x":"y"}',
            {"type": "tool_search_call", "execution": "client", "arguments": {"x": "y"}},
        ),
    ],
)
def test_call_is_turned_back_and_means_the_same_in_the_next_turn(
    name: str, arguments: str, expected: dict[str, Any]
) -> None:
    [item] = answer(call(name, arguments))
    assert {field: item.get(field) for field in expected} == expected
    assert (item["call_id"], item["status"]) == ("c0", "completed")
    kind = item["type"].replace("tool_search_call", "tool_search") + "_output"
    result = {"type": kind, "call_id": "c0", "output": "fine", "tools": []}
    messages = translate(R, C, tools=TOOLS, input=[USER, item, result])["messages"]
    [made] = messages[1]["tool_calls"]
    assert made["function"]["name"] == name
    assert orjson.loads(made["function"]["arguments"]) == orjson.loads(arguments)
    assert (messages[2]["role"], messages[2]["tool_call_id"]) == ("tool", "c0")


@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "result"),
    [
        (
            {"type": "local_shell"},
            {"command": ["ls"]},
            {"action": {"type": "exec", "command": ["ls"], "env": {}}},
            "a.txt",
        ),
        (
            LOCAL_SHELL,
            {"commands": ["ls"], "timeout_ms": 5},
            {"action": {"commands": ["ls"], "timeout_ms": 5}},
            [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        ),
        (
            {"type": "apply_patch"},
            {"type": "delete_file", "path": "a.txt"},
            {"operation": {"type": "delete_file", "path": "a.txt"}},
            "a.txt is gone",
        ),
    ],
)
def test_tools_that_the_format_knows_are_functions(
    tool: dict[str, Any], arguments: dict[str, Any], expected: dict[str, Any], result: Any
) -> None:
    kind = tool["type"]
    [item] = answer(call(kind, orjson.dumps(arguments).decode()), tools=[tool])
    assert item["type"] == f"{kind}_call"
    [(field, holder)] = expected.items()
    assert holder.items() <= item[field].items()
    output = {"type": f"{kind}_call_output", "call_id": "c0", "output": result}
    _, called, shown = translate(R, C, tools=[tool], input=[USER, item, output])["messages"]
    function = called["tool_calls"][0]["function"]
    assert function["name"] == kind
    assert arguments.items() <= orjson.loads(function["arguments"]).items()
    assert "a.txt" in shown["content"]


EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.mark.parametrize(
    "tool",
    [*TOOLS[:2], SEARCH, {"type": "local_shell"}, {"type": "apply_patch"}, LOCAL_SHELL],
    ids=lambda tool: tool["type"],
)
def test_events_of_each_kind_of_call_are_those_of_the_format(tool: dict[str, Any]) -> None:
    name = tool.get("name", tool["type"])
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call(name, "{}")]}}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    stream = exchange(R, C, tools=[tool], stream=True).open_stream()
    events = read_frames(run_stream(stream, [write_frames([chunk, end, b"[DONE]"])]))
    for event in events:
        EVENT.validate_python(event)
    assert [event["type"] for event in events].count("response.output_item.done") == 1


def test_stream_of_calls_has_the_events_of_each_kind_of_tool() -> None:
    pieces = [call("apply_patch", '{"inp'), call("agents__spawn", "{}", 1)]
    rest = {"index": 0, "function": {"arguments": 'ut":"p"}'}}
    chunks = [
        {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]}
        for calls in (pieces, [rest])
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    stream = exchange(R, C, tools=TOOLS, stream=True).open_stream()
    events = read_frames(run_stream(stream, [write_frames([*chunks, end, b"[DONE]"])]))
    kinds = [event["type"].removeprefix("response.") for event in events[2:]]
    assert kinds == [
        "output_item.added",
        "output_item.added",
        "function_call_arguments.delta",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert (events[2]["item"]["input"], events[2]["item"]["status"]) == ("", "in_progress")
    assert (events[5]["delta"], events[6]["input"]) == ("p", "p")
    assert [item["id"] for item in events[-1]["response"]["output"]] == [
        events[2]["item"]["id"],
        events[3]["item"]["id"],
    ]


@pytest.mark.parametrize("name", ["agents__spawn", "apply_patch"])
def test_call_whose_name_comes_in_pieces_is_of_the_tool_it_names(name: str) -> None:
    functions = [
        {"name": name[:4], "arguments": ""},
        {"name": name[4:]},
        {"arguments": '{"input":"x"}'},
    ]
    first, last, _ = chat_chunks()
    chunks = [
        first
        | {
            "choices": [
                {"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": each}]}}
            ]
        }
        for each in functions
    ]
    stream = exchange(R, C, tools=TOOLS, stream=True).open_stream()
    events = read_frames(run_stream(stream, [write_frames([first, *chunks, last, b"[DONE]"])]))
    for event in events:
        EVENT.validate_python(event)
    [item] = events[-1]["response"]["output"]
    [whole] = answer(call(name, '{"input":"x"}'))
    assert {key: value for key, value in item.items() if key not in ("id", "call_id")} == {
        key: value for key, value in whole.items() if key not in ("id", "call_id")
    }


def test_text_that_is_no_json_is_the_input_of_a_custom_tool() -> None:
    assert answer(call("apply_patch", "*** Begin"))[0]["input"] == "*** Begin"


def test_names_that_meet_or_are_too_long_stay_apart() -> None:
    def space(name: str, *tools: str) -> dict[str, Any]:
        inner = [{**FUNCTION, "name": tool} for tool in tools]
        return {"type": "namespace", "name": name, "description": "", "tools": inner}

    long = "x" * 80
    tools = [
        {**FUNCTION, "name": "a__b__c"},
        space("a", "b__c", long + "1", long + "2"),
        space("a__b", "c"),
    ]
    names = [tool["function"]["name"] for tool in translate(R, C, tools=tools)["tools"]]
    assert len(set(names)) == 5
    assert all(len(name) <= 64 for name in names)
    items = answer(*[call(name, "{}", index) for index, name in enumerate(names)], tools=tools)
    assert [(item.get("namespace"), item["name"]) for item in items] == [
        (None, "a__b__c"),
        ("a", "b__c"),
        ("a", long + "1"),
        ("a", long + "2"),
        ("a__b", "c"),
    ]
    again = translate(R, C, tools=tools, input=[USER, *items])["messages"][1]["tool_calls"]
    assert [each["function"]["name"] for each in again] == names


@pytest.mark.parametrize("is_reversed", [False, True])
def test_function_and_tool_of_a_namespace_that_meet_stay_apart(is_reversed: bool) -> None:
    space = {"type": "namespace", "name": "a", "description": "", "tools": [FUNCTION]}
    tools = [{**FUNCTION, "name": f"a__{FUNCTION['name']}"}, space][:: -1 if is_reversed else 1]
    names = [tool["function"]["name"] for tool in translate(R, C, tools=tools)["tools"]]
    items = answer(*[call(name, "{}", index) for index, name in enumerate(names)], tools=tools)
    spaces = [None, "a"][:: -1 if is_reversed else 1]
    assert [item.get("namespace") for item in items] == spaces


def test_results_follow_their_calls_whatever_stands_between() -> None:
    calls = [
        {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": {"x": 1}}
        for number in range(3)
    ]
    results = [
        {"type": "function_call_output", "call_id": f"c{number}", "output": str(number)}
        for number in range(3)
    ]
    wait = {"type": "message", "role": "assistant", "content": "Wait."}
    items = [USER, calls[0], calls[1], wait, results[1], USER, calls[2], results[2], results[0]]
    messages = translate(R, C, input=items)["messages"]
    shown = [(each["role"], each.get("tool_call_id")) for each in messages]
    assert shown == [
        ("user", None),
        ("assistant", None),
        ("tool", "c1"),
        ("tool", "c0"),
        ("assistant", None),
        ("user", None),
        ("assistant", None),
        ("tool", "c2"),
    ]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
    contents = translate(R, G, input=items)["contents"]
    assert [len(each["parts"]) for each in contents] == [1, 2, 2, 1, 1, 1, 1]


def test_texts_before_a_call_are_in_its_content_at_google() -> None:
    said = [{"role": "assistant", "content": text} for text in ("One.", "Two.")]
    made = {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}"}
    _, content = translate(R, G, input=[USER, *said, made])["contents"]
    assert [set(part) for part in content["parts"]] == [
        {"text"},
        {"text"},
        {"functionCall", "thoughtSignature"},
    ]


def test_tools_that_a_search_has_found_are_declared() -> None:
    found = {"type": "tool_search_output", "call_id": "c0", "tools": [SPACE], "execution": "client"}
    searched = {"type": "tool_search_call", "call_id": "c0", "arguments": {"x": "y"}}
    body = translate(R, C, tools=[SEARCH], input=[USER, searched, found])
    assert [tool["function"]["name"] for tool in body["tools"]] == [
        "tool_search",
        "agents__spawn",
        "agents__look",
    ]
    assert "agents__spawn" in body["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
        ({"type": "apply_patch"}, "apply_patch"),
    ],
)
def test_choice_of_a_tool_names_its_function(choice: dict[str, Any], expected: str) -> None:
    body = translate(R, C, tools=TOOLS, tool_choice=choice)
    assert body["tool_choice"]["function"]["name"] == expected


def test_allowed_tools_of_a_namespace_are_the_only_ones() -> None:
    allowed = [PATCH | {"description": ""}, {"type": "namespace", "name": "agents"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": allowed}
    body = translate(R, C, tools=TOOLS, tool_choice=choice)
    names = [tool["function"]["name"] for tool in body["tools"]]
    assert (names, body["tool_choice"]) == (
        ["apply_patch", "agents__spawn", "agents__look"],
        "required",
    )


NOW = datetime(2026, 11, 23, tzinfo=UTC)
WEB = {"type": "web_search", "external_web_access": True}


@pytest.mark.parametrize("upstream", [C, R, G])
def test_tool_of_the_provider_is_left_out_beside_those_of_the_client(upstream: Format) -> None:
    priced = price_call(read(R, tools=[FUNCTION, WEB]), MODEL, lambda: NOW)
    assert priced.call.dropped == ("web_search",)
    assert not priced.call.is_open
    assert priced.call.body["tools"] == [FUNCTION]
    offered = exchange(R, upstream, tools=[FUNCTION, WEB])
    assert list(offered.dropped) == ([] if upstream is R else ["web_search"])


def test_tools_of_google_are_left_out_in_either_spelling() -> None:
    declared = {"functionDeclarations": [{"name": "f"}]}
    tools = [{**declared, "google_search": {}}, {"codeExecution": {}}]
    call_ = price_call(read(G, tools=tools), MODEL, lambda: NOW).call
    assert call_.body["tools"] == [declared]
    assert call_.dropped == ("googleSearch", "codeExecution")


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": [WEB]},
        {"tools": [FUNCTION, WEB], "tool_choice": {"type": "web_search"}},
        {"tools": [FUNCTION, {"type": "mcp", "server_url": "https://x"}]},
        {"tools": [FUNCTION, WEB], "service_tier": "priority"},
        {
            "tools": [FUNCTION, WEB],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [WEB]},
        },
    ],
)
def test_call_that_depends_on_a_tool_of_the_provider_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        price_call(read(R, **changes), MODEL, lambda: NOW)
    assert caught.value.code == "unsupported_parameter"


def test_fields_and_items_that_concern_another_provider_alone_are_left_out() -> None:
    others = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_call", "id": "m", "server_label": "s", "name": "x", "arguments": "{}"},
        {"type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {}},
        {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": []},
    ]
    items = [USER, *others, USER]
    sent = exchange(R, C, input=items, client_metadata={"session": "x"}, prompt_cache_key="k")
    assert sent.body == {"model": "up", "store": False, "messages": [USER, USER]}
    assert not sent.dropped
