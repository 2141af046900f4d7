"""Pictures in results of tools and in other messages that are no user's, translated."""

from typing import Any

import pytest

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.links import find_links
from tests.fakes.llm_calls import USER, read, translate

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
URL = "data:image/png;base64,iVBORw=="
BLOB = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def responses(*output: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        USER,
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": list(output)},
    ]


TEXT, SHOWN = {"type": "input_text", "text": "a cat"}, {"type": "input_image", "image_url": URL}
RESULT = {"functionResponse": {"name": "look", "response": {"result": "a cat"}}}


def test_picture_of_a_tool_reaches_google_beside_its_result() -> None:
    body = translate(R, G, input=responses(TEXT, SHOWN))
    assert body["contents"][-1] == {"role": "user", "parts": [RESULT, BLOB]}
    messages = [
        USER,
        CALLED,
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "text", "text": "a cat"}, IMAGE],
        },
    ]
    assert translate(C, G, messages=messages) == body


def test_picture_of_a_tool_reaches_chat_in_a_message_of_the_user() -> None:
    *_, result, shown = translate(R, C, input=responses(TEXT, SHOWN))["messages"]
    assert result == {"role": "tool", "tool_call_id": "c", "content": "a cat"}
    assert shown == {"role": "user", "content": [IMAGE]}
    alone = translate(R, C, input=responses(SHOWN))["messages"]
    assert alone[-2]["content"]
    assert alone[-1] == shown


def test_pictures_of_parallel_calls_come_after_the_last_result() -> None:
    items = responses(SHOWN)
    items[2:2] = [items[1] | {"call_id": "d"}]
    items.append({"type": "function_call_output", "call_id": "d", "output": [TEXT, SHOWN]})
    messages = translate(R, C, input=[*items, USER])["messages"]
    assert [each["role"] for each in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "user",
    ]
    assert messages[-2]["content"] == [IMAGE, IMAGE]
    parts = translate(R, G, input=items)["contents"][-1]["parts"]
    assert [next(iter(part)) for part in parts] == [
        "functionResponse",
        "inlineData",
        "functionResponse",
        "inlineData",
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_picture_of_an_instruction_is_the_users(role: str) -> None:
    given = [{"role": role, "content": [TEXT, SHOWN]}, USER]
    body = translate(R, G, input=given)
    assert body["systemInstruction"] == {"parts": [{"text": "a cat"}]}
    assert body["contents"][0] == {"role": "user", "parts": [BLOB]}
    messages = translate(R, C, input=given)["messages"]
    assert messages == [
        {"role": "system", "content": "a cat"},
        {"role": "user", "content": [IMAGE]},
        USER,
    ]


def test_picture_that_the_model_drew_stays_in_the_conversation() -> None:
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": "iVBORw=="}
    body = translate(R, G, input=[USER, drawn, USER])
    assert body["contents"][1] == {"role": "model", "parts": [BLOB]}
    messages = translate(R, C, input=[USER, drawn, USER])["messages"]
    assert messages[1:3] == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": [IMAGE]},
    ]
    turn = {"role": "model", "parts": [{"text": "A cat."}, BLOB]}
    asked = {"role": "user", "parts": [{"text": "hi"}]}
    messages = translate(G, C, contents=[asked, turn, asked])["messages"]
    assert messages[1:3] == [
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [IMAGE]},
    ]


def test_picture_in_a_result_of_google_reaches_chat() -> None:
    contents = [
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look", "response": {"n": 1}, "parts": [BLOB]}}
            ],
        },
    ]
    *_, result, shown = translate(G, C, contents=contents)["messages"]
    assert result["content"] == '{"n":1}'
    assert shown == {"role": "user", "content": [IMAGE]}


@pytest.mark.parametrize(
    "url",
    [
        "DATA:IMAGE/PNG;base64,iVBORw==",
        "data:image/png;charset=utf-8;base64,iVBORw==",
        "data:image/png,%89PNG",
    ],
)
def test_every_form_of_a_data_url_reaches_google(url: str) -> None:
    shown = {"type": "image_url", "image_url": {"url": url}}
    body = translate(C, G, messages=[{"role": "user", "content": [shown]}])
    assert body["contents"] == [{"role": "user", "parts": [BLOB]}]


def test_pictures_that_a_model_drew_reach_google_again_and_are_reserved() -> None:
    drew = {"role": "assistant", "content": "Here.", "images": [IMAGE]}
    messages = [USER, drew, USER]
    body = translate(C, G, messages=messages)
    assert body["contents"][1] == {"role": "model", "parts": [{"text": "Here."}, BLOB]}
    plain = read(C, messages=[USER, {"role": "assistant", "content": "Here."}, USER])
    assert read(C, messages=messages).input_bound > plain.input_bound + 40_000
    linked = {"type": "image_url", "image_url": {"url": "HTTPS://example.com/a.png"}}
    call = read(C, messages=[USER, drew | {"images": [linked]}])
    assert [link.place for link in find_links(call, G)] == ["messages[1].images[0].image_url"]


def test_picture_in_an_instruction_of_google_reaches_chat_in_a_message_of_the_user() -> None:
    parts = [{"text": "Be brief."}, {"inlineData": {"mimeType": "IMAGE/PNG", "data": "iVBORw=="}}]
    system, shown, _ = translate(G, C, systemInstruction={"parts": parts})["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert shown == {"role": "user", "content": [IMAGE]}


def test_address_of_a_picture_may_be_an_object_in_responses() -> None:
    shown = {"type": "input_image", "image_url": {"url": URL}}
    body = translate(R, C, input=[{"role": "user", "content": [shown]}])
    assert body["messages"] == [{"role": "user", "content": [IMAGE]}]


COMPUTER: list[dict[str, Any]] = [
    USER,
    {"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": "screenshot"}},
    {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "image_url": URL},
    },
]


def test_screenshot_of_an_earlier_turn_reaches_chat() -> None:
    _, called, result, shown = translate(R, C, input=COMPUTER)["messages"]
    [call] = called["tool_calls"]
    assert call["function"] == {
        "name": "computer",
        "arguments": '{"action":{"type":"screenshot"}}',
    }
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])
    assert shown == {"role": "user", "content": [IMAGE]}


def test_screenshot_of_an_earlier_turn_reaches_google() -> None:
    _, called, result = translate(R, G, input=COMPUTER)["contents"]
    assert called["parts"][0]["functionCall"] == {
        "name": "computer",
        "args": {"action": {"type": "screenshot"}},
    }
    assert result["parts"][1] == BLOB


def test_address_of_a_screenshot_is_fetched_for_google() -> None:
    output = {"type": "computer_screenshot", "image_url": "https://a.example/b.png"}
    call = read(R, input=[*COMPUTER[:2], COMPUTER[2] | {"output": output}])
    assert [link.url for link in find_links(call, G)] == ["https://a.example/b.png"]
    assert find_links(call, C) == []


@pytest.mark.parametrize("upstream", [C, G])
def test_items_of_tools_of_earlier_providers_are_left_out(upstream: Format) -> None:
    items: list[dict[str, Any]] = [
        {"type": "mcp_approval_request", "id": "m", "name": "f", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
        {"type": "program", "id": "p", "call_id": "p", "code": "1", "fingerprint": "f"},
        {"type": "program_output", "id": "o", "call_id": "p", "result": "1"},
    ]
    assert translate(R, upstream, input=[*items, USER]) == translate(R, upstream, input=[USER])


def test_settings_in_the_input_replace_those_before() -> None:
    update = {
        "type": "configuration_update",
        "reasoning": {"effort": "high"},
        "text": {"format": {"type": "json_object"}},
    }
    body = translate(R, C, input=[USER, update, USER], reasoning={"effort": "low"})
    assert body["reasoning_effort"] == "high"
    assert body["response_format"] == {"type": "json_object"}
    assert len(body["messages"]) == 2
