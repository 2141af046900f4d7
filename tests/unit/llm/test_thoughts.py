"""Reasoning and signatures of earlier turns: back to the provider that wrote them, and no other."""

from typing import Any

import orjson
import pytest
from openai.types.responses import Response

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.exchange import Exchange, plan_exchange
from gateway_core.llm.formats.thoughts import PLACEHOLDER_SIGNATURE
from tests.fakes.llm_calls import USER, exchange, read, translate
from tests.fakes.llm_streams import read_frames, run_stream, write_frames

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
TOOL = {"type": "function", "name": "f"}
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SIGNED = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}
THOUGHT = {"text": "Hm.", "thought": True}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "4"}


def chat_answer(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}


def google_answer(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def items_of(upstream: Format, document: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of an answer for a client of Responses, after the strict oracle has read them."""
    answer, _ = exchange(R, upstream, tools=[TOOL]).complete(orjson.dumps(document))
    Response.model_validate(answer)
    items: list[dict[str, Any]] = answer["output"]
    return items


def results_for(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [item for item in items if item["type"] == "function_call"]
    return [RESULT | {"call_id": item["call_id"]} for item in calls]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_an_item_and_returns_to_a_provider_of_chat(field: str) -> None:
    items = items_of(C, chat_answer(**{field: "Hm."}, content="Hi", tool_calls=[CALL]))
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    messages = translate(R, C, input=[USER, *items, *results_for(items)])["messages"]
    assert messages[1][field] == "Hm."
    assert (messages[1]["content"], len(messages[1]["tool_calls"])) == ("Hi", 1)
    assert "Hm." not in str(translate(R, G, input=[USER, *items, *results_for(items)]))


def test_stream_of_reasoning_has_its_events_and_the_items_of_the_whole_answer() -> None:
    deltas = [{"reasoning_content": "H"}, {"reasoning_content": "m."}, {"content": "Hi"}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    stream = exchange(R, C, stream=True).open_stream()
    events = read_frames(run_stream(stream, [write_frames([*chunks, end, b"[DONE]"])]))
    assert [event["type"].removeprefix("response.") for event in events[2:]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[2]["item"]["summary"] == []
    assert events[6]["text"] == "Hm."
    done = events[8]["item"]
    assert events[-1]["response"]["output"][0] == done
    [whole, _] = items_of(C, chat_answer(reasoning_content="Hm.", content="Hi"))
    assert {**whole, "id": ""} == {**done, "id": ""}


@pytest.mark.parametrize("thoughts", [[], [THOUGHT]])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_signature_returns_to_google_through_responses(
    thoughts: list[Any], is_streamed: bool
) -> None:
    document = google_answer(*thoughts, SIGNED, {"functionCall": {"name": "f", "args": {}}})
    if is_streamed:
        stream = exchange(R, G, tools=[TOOL], stream=True).open_stream()
        items = read_frames(run_stream(stream, [write_frames([document])]))[-1]["response"][
            "output"
        ]
    else:
        items = items_of(G, document)
    assert [item["type"] for item in items] == ["reasoning", "function_call", "function_call"]
    turn = [USER, *items, *results_for(items)]
    parts = translate(R, G, input=turn)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["c2ln", None]
    assert "c2ln" not in str(translate(R, C, input=turn))
    assert all(item.get("type") != "reasoning" for item in translate(R, R, input=turn)["input"])


def test_reasoning_of_a_responses_provider_returns_to_it_alone() -> None:
    own = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    assert translate(R, R, input=[USER, own])["input"] == [USER, own]
    assert translate(R, C, input=[USER, own])["messages"] == [USER]


def chat_turn() -> list[dict[str, Any]]:
    answer, _ = exchange(C, G).complete(orjson.dumps(google_answer(THOUGHT, SIGNED)))
    message = answer["choices"][0]["message"]
    [call] = message["tool_calls"]
    return [USER, message, {"role": "tool", "tool_call_id": call["id"], "content": "4"}]


def test_signature_in_chat_reaches_google_and_no_provider_of_chat() -> None:
    messages = chat_turn()
    parts = translate(C, G, messages=messages)["contents"][1]["parts"]
    assert parts[0]["thoughtSignature"] == "c2ln"
    assert "extra_content" not in str(translate(C, C, messages=messages))


def test_signature_of_a_chat_providers_own_stays() -> None:
    call = CALL | {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}]
    assert translate(C, C, messages=messages)["messages"] == messages
    items = items_of(C, chat_answer(content=None, tool_calls=[call]))
    [made] = translate(R, C, input=[USER, *items])["messages"][1]["tool_calls"]
    assert made["extra_content"] == call["extra_content"]


def plan(format_: Format, model: str, **changes: Any) -> Exchange:
    return plan_exchange(read(format_, **changes), G, model, 5)


@pytest.mark.parametrize(
    ("model", "signature"),
    [
        ("gemini-3-pro", PLACEHOLDER_SIGNATURE),
        ("own-name", PLACEHOLDER_SIGNATURE),
        ("gemini-2.5-pro", None),
        ("models/gemini-1.5-flash", None),
        ("publishers/google/models/gemini-2.5-pro", None),
        ("publishers/google/models/gemini-3-pro", PLACEHOLDER_SIGNATURE),
    ],
)
def test_call_without_a_signature_has_the_placeholder(model: str, signature: str | None) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    chat = [USER, {"role": "assistant", "tool_calls": [CALL, CALL | {"id": "d"}]}]
    parts = [{"functionCall": {"name": "f", "args": {}}}] * 2
    native = [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": parts}]
    for sent in (
        plan(R, model, input=[USER, item, item | {"call_id": "d"}]),
        plan(C, model, messages=chat),
        plan(G, model, contents=native),
    ):
        signed = sent.body["contents"][1]["parts"]
        assert [part.get("thoughtSignature") for part in signed] == [signature, None]


@pytest.mark.parametrize(("part", "given"), [({}, "Hm."), ({"thoughtSignature": "c2ln"}, None)])
def test_thoughts_of_a_chat_provider_return_from_a_client_of_google(
    part: dict[str, Any], given: str | None
) -> None:
    call = {"functionCall": {"name": "f", "args": {}}, **part}
    result = {"functionResponse": {"name": "f", "response": {"result": 4}}}
    contents = [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [THOUGHT, call]},
        {"role": "user", "parts": [result]},
    ]
    message = translate(G, C, contents=contents)["messages"][1]
    assert message.get("reasoning_content") == given


def test_details_of_reasoning_return_unchanged_to_an_aggregator() -> None:
    text = {"type": "reasoning.text", "text": "Hm.", "index": 0, "signature": "c2ln"}
    hidden = {"type": "reasoning.encrypted", "data": "ZGF0YQ==", "id": "c", "index": 1}
    deltas = [
        {"reasoning": "H", "reasoning_details": [text | {"text": "H", "signature": None}]},
        {"reasoning": "m.", "reasoning_details": [text | {"text": "m."}]},
        {"reasoning_details": [hidden]},
        {"tool_calls": [CALL]},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    stream = exchange(R, C, tools=[TOOL], stream=True).open_stream()
    sent = run_stream(stream, [write_frames([*chunks, end, b"[DONE]"])])
    streamed = read_frames(sent)[-1]["response"]["output"]
    whole = items_of(
        C, chat_answer(reasoning="Hm.", reasoning_details=[text, hidden], tool_calls=[CALL])
    )
    for items in (streamed, whole):
        assert [item["type"] for item in items] == ["reasoning", "function_call"]
        message = translate(R, C, input=[USER, *items, RESULT])["messages"][1]
        assert message["reasoning_details"] == [text, hidden]
        assert message["reasoning"] == "Hm."
        assert "ZGF0YQ" not in str(translate(R, G, input=[USER, *items, RESULT]))
