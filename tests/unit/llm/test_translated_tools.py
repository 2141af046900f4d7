"""Translation of tools, schemas and results of functions between chat and generateContent."""

from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.calls import Format
from tests.fakes.llm_calls import USER, exchange, translate
from tests.fakes.llm_streams import read_frames, run_stream, write_frames

C, G = Format.CHAT, Format.GOOGLE


def to_google(**body: Any) -> dict[str, Any]:
    return translate(C, G, **body)


def to_chat(**body: Any) -> dict[str, Any]:
    return translate(G, C, **body)


def declare(parameters: Any) -> dict[str, Any]:
    """Google's declaration of a function with these parameters in chat."""
    function = {"name": "f", "parameters": parameters}
    body = to_google(tools=[{"type": "function", "function": function}])
    [declaration] = body["tools"][0]["functionDeclarations"]
    return dict(declaration)


def convert(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of Google as that of a wanted answer in chat."""
    config = {"responseMimeType": "application/json", "responseSchema": schema}
    wanted = to_chat(generationConfig=config)["response_format"]
    return dict(wanted["json_schema"]["schema"])


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        {"type": "object"},
    ],
)
def test_function_without_parameters_declares_none(parameters: dict[str, Any]) -> None:
    """Google refuses an object without properties."""
    assert declare(parameters) == {"name": "f"}


def test_parameters_without_properties_that_mean_something_are_kept() -> None:
    parameters = {"type": "object", "additionalProperties": {"type": "string"}}
    assert declare(parameters) == {"name": "f", "parametersJsonSchema": parameters}


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "format": "uri"},
        {"type": "object"},
        {"enum": ["a"]},
        {"type": "string", "enum": ["a", ""]},
    ],
)
def test_schema_that_google_refuses_is_sent_as_json_schema(value: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"x": value}}
    assert declare(parameters) == {"name": "f", "parametersJsonSchema": parameters}


@pytest.mark.parametrize(
    "value", [{"type": "string", "format": "date-time"}, {"type": "integer", "format": "int64"}]
)
def test_formats_of_google_stay_in_its_schema(value: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"x": value}}
    assert declare(parameters) == {"name": "f", "parameters": parameters}


@pytest.mark.parametrize(
    ("google", "chat"),
    [
        (
            {"type": "ARRAY", "minItems": "1", "max_items": "3", "items": {"type": "STRING"}},
            {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string"}},
        ),
        (
            {"type": "STRING", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        (
            {"any_of": [{"type": "STRING"}, {"type": "NUMBER"}], "nullable": True},
            {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
        ),
        (
            {"type": "OBJECT", "properties": {"min_items": {"type": "STRING"}}},
            {"type": "object", "properties": {"min_items": {"type": "string"}}},
        ),
    ],
)
def test_google_schema_becomes_json_schema(google: dict[str, Any], chat: dict[str, Any]) -> None:
    assert convert(google) == chat


def test_results_of_parallel_calls_are_in_the_order_of_the_calls() -> None:
    """Google tells results of one function apart by their order."""
    ids = ("a", "b", "c")
    calls = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": each} for each in ("c", "a", "b")]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, *results, USER]
    contents = to_google(messages=messages)["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "user"]
    assert [part["functionResponse"]["response"] for part in contents[2]["parts"]] == [
        {"result": each} for each in ids
    ]


def test_empty_content_before_a_result_is_an_empty_text() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": []},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]
    _, empty, result = to_google(messages=messages)["contents"]
    assert empty == {"role": "user", "parts": [{"text": ""}]}
    assert "functionResponse" in result["parts"][0]


def test_instructions_alone_are_the_prompt() -> None:
    body = to_google(messages=[{"role": "system", "content": "Say hi."}])
    assert body == {"contents": [{"role": "user", "parts": [{"text": "Say hi."}]}]}


def test_refusal_in_an_earlier_answer_is_text() -> None:
    answer = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    contents = to_google(messages=[USER, answer, USER])["contents"]
    assert contents[1] == {"role": "model", "parts": [{"text": "No."}]}


@pytest.mark.parametrize("mode", ["AUTO", "VALIDATED"])
def test_modes_that_leave_the_choice_to_the_model_are_auto(mode: str) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}]}]
    config = {"functionCallingConfig": {"mode": mode}}
    assert to_chat(tools=tools, toolConfig=config)["tool_choice"] == "auto"


@pytest.mark.parametrize("config", [{"includeThoughts": True}, {"thinkingBudget": -1}])
def test_thinking_that_changes_no_answer_is_left_out(config: dict[str, Any]) -> None:
    body = to_chat(generationConfig={"thinkingConfig": config})
    assert body == {"model": "up", "store": False, "messages": [USER]}


def test_metadata_of_an_answer_to_be_stored_is_left_out() -> None:
    sent = translate(C, C, metadata={"a": "b"}, store=True)
    assert sent == {"model": "up", "messages": [USER], "store": False}
    assert translate(C, C, metadata={"a": "b"})["metadata"] == {"a": "b"}


@pytest.mark.parametrize(("parallel", "count"), [(None, 3), (True, 3), (False, 1)])
def test_answer_has_one_call_where_the_client_forbids_parallel_ones(
    parallel: bool | None, count: int
) -> None:
    """Google has no such field."""
    call = {"functionCall": {"name": "f", "args": {}}}
    chunks = [
        {"candidates": [{"content": {"parts": [call] * number}, "finishReason": reason}]}
        for number, reason in ((2, None), (1, "STOP"))
    ]
    made = exchange(C, G, stream=True, parallel_tool_calls=parallel)
    assert made.body == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    made.drop_bodies()
    *frames, _ = read_frames(run_stream(made.open_stream(), [write_frames(chunks)]))
    deltas = [frame["choices"][0]["delta"].get("tool_calls", []) for frame in frames]
    assert sum(map(len, deltas)) == count
    assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = {"candidates": [{"content": {"parts": [call] * 3}, "finishReason": "STOP"}]}
    [choice] = made.complete(orjson.dumps(whole))[0]["choices"]
    assert len(choice["message"]["tool_calls"]) == count


def name_functions(*names: str) -> list[str]:
    """The names that Google is told for functions of chat."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    [tool] = translate(C, G, tools=tools)["tools"]
    return [each["name"] for each in tool["functionDeclarations"]]


def test_function_named_like_a_replacement_stays_apart_from_it() -> None:
    [replaced] = name_functions("1c_probe")
    names = ["1c_probe", replaced]
    told = name_functions(*names)
    assert (told[0], len(set(told))) == (replaced, 2)
    made = exchange(
        C, G, tools=[{"type": "function", "function": {"name": name}} for name in names]
    )
    parts = [{"functionCall": {"name": name, "args": {}}} for name in told]
    answer = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    [choice] = made.complete(orjson.dumps(answer))[0]["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == names
