"""LLM calls of the OpenAI dialect: what is sent upstream, what comes back, and what it costs."""

import asyncio
from functools import partial
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.large_bodies import LARGE_BYTES, LargeBodies
from gateway_apiserver.surfaces.llm import calls
from tests.servers.llm_provider import Received, Reply, make_chat_answer, make_chat_chunks
from tests.servers.world import wait_for
from tests.unit.apiserver.filing import Cabinet
from tests.unit.apiserver.gateway import call
from tests.unit.apiserver.llm_gateway import (
    BODY,
    CHAT,
    LlmGateway,
    answer,
    break_off,
    fail_with,
    read_frames,
    say_and_hang,
    serve,
    stream,
)


async def test_answer_has_public_model_and_is_charged_by_its_tokens() -> None:
    async with serve(answer) as (gateway, provider):
        found = await gateway.chat(temperature=0.5, vendor_field={"a": 1})

        assert found.status == 200, found.body
        assert found.json["model"] == "chat-1"
        assert found.json["choices"][0]["message"]["content"] == "Hello"
        sent = provider.received[0]
        assert sent.target == "/v1/chat/completions"
        assert sent.body == {
            **BODY,
            "model": "up-1",
            "temperature": 0.5,
            "vendor_field": {"a": 1},
            "store": False,
        }
        record = await gateway.read_record()
        assert (record.micros, record.input_tokens, record.output_tokens) == (20, 10, 5)
        assert (record.operation, record.model_id) == ("sim/chat", "chat-1")


async def test_stream_is_passed_on_and_charged_by_its_usage() -> None:
    async with serve(stream("He", "llo")) as (gateway, provider):
        found = await gateway.chat(stream=True)

        assert found.status == 200
        assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, done = read_frames(found.body)
        assert done == "[DONE]"
        assert {chunk["model"] for chunk in chunks} == {"chat-1"}
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == "Hello"
        assert not any("usage" in chunk for chunk in chunks)
        assert provider.received[0].body["stream_options"] == {"include_usage": True}
        record = await gateway.read_record()
        assert (record.micros, record.output_tokens, record.estimated) == (14, 2, False)


async def test_usage_chunk_comes_last_where_it_was_asked_for() -> None:
    async with serve(stream("Hello")) as (gateway, _):
        found = await gateway.chat(stream=True, stream_options={"include_usage": True})

        *chunks, usage, done = read_frames(found.body)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["total_tokens"] == 11
        assert all(chunk["usage"] is None for chunk in chunks)


async def test_stream_that_breaks_off_ends_with_an_error_and_is_charged_by_estimate() -> None:
    async with serve(break_off) as (gateway, _):
        found = await gateway.chat(stream=True)

        *_, error = read_frames(found.body)
        assert error["error"]["code"] == "upstream_error"
        record = await gateway.read_record()
        assert (record.failed, record.estimated, record.output_tokens) == (True, True, 2)


async def test_disconnect_closes_the_upstream_connection_and_settles() -> None:
    async with serve(say_and_hang) as (gateway, provider):
        await gateway.leave_after(lambda got: b"Hello" in got, stream=True)
        await wait_for(lambda: provider.open_connections == 0)
        record = await gateway.read_record()
        assert (record.failed, record.estimated, record.output_tokens) == (True, True, 2)


async def test_provider_error_before_the_stream_is_a_status() -> None:
    async with serve(fail_with(400, "bad temperature")) as (gateway, _):
        found = await gateway.chat(stream=True)

        assert found.status == 400
        assert found.json["error"]["message"] == "bad temperature"
        assert (await gateway.read_record()).micros == 0


async def test_models_are_listed_in_both_dialects() -> None:
    async with serve(answer) as (gateway, _):
        listed = await gateway.get("/v1/models")
        native = await call(gateway.app, "GET", "/v1/models", query=f"key={gateway.key}")
        called = await gateway.chat(model="nothing")
        assert (called.status, called.json["error"]["code"]) == (404, "model_not_found")
        shown = await gateway.get("/v1/models/chat-1")

        assert [model["id"] for model in listed.json["data"]] == ["chat-1"]
        assert [model["name"] for model in native.json["models"]] == ["models/chat-1"]
        assert shown.json["object"] == "model"
        unknown = await gateway.get("/v1/models/nothing")
        assert unknown.status == 404
        for found in (listed, native, shown, unknown):
            assert found.headers["vary"] == "Authorization, x-goog-api-key"


@pytest.mark.parametrize("maintenance", [False, True])
async def test_different_keys_in_one_request_are_401_and_in_maintenance_503(
    maintenance: bool,
) -> None:
    async with serve(answer, maintenance=maintenance) as (gateway, _):
        bearer = ("Authorization", f"Bearer {gateway.key}")
        own, other = ("x-goog-api-key", gateway.key), ("x-goog-api-key", gateway.other_key)
        for headers, query_key, status in (
            ([bearer, other], None, 401),
            ([own, other], None, 401),
            ([own], gateway.other_key, 401),
            ([bearer, own], gateway.key, 200),
        ):
            found = await call(
                gateway.app,
                "POST",
                CHAT,
                headers=[*headers, ("Content-Type", "application/json")],
                query=f"key={query_key}" if query_key else "",
                content=orjson.dumps(BODY),
            )
            assert found.status == (503 if maintenance else status), (headers, found.body)


EMPTY = [
    (CHAT, {"model": "chat-1"}, "messages", {"role": "user", "content": ""}),
    ("/v1/responses", {"model": "chat-1"}, "input", {"role": "user", "content": ""}),
    ("/v1beta/models/chat-1:generateContent", {}, "contents", {"parts": [{"text": ""}]}),
]


@pytest.mark.parametrize(("path", "fields", "name", "message"), EMPTY)
async def test_empty_prompt_is_refused_and_an_empty_text_is_forwarded(
    path: str, fields: dict[str, Any], name: str, message: dict[str, Any]
) -> None:
    async with serve(answer) as (gateway, provider):
        for empty in ([], None):
            refused = await gateway.create({**fields, name: empty}, path=path)
            assert refused.status == 400
            assert name in refused.json["error"]["message"]
        assert provider.received == []
        assert (await gateway.create({**fields, name: [message]}, path=path)).status == 200
        (received,) = provider.received
        texts = [each["content"] for each in received.body["messages"]]
        assert texts in ([""], [[{"type": "text", "text": ""}]])
        (record,) = await gateway.close()
        assert record.micros > 0


async def test_methods_and_actions_that_are_not_served() -> None:
    async with serve(answer) as (gateway, _):
        key = [("x-goog-api-key", gateway.key), ("Content-Type", "application/json")]
        bearer = [("Authorization", f"Bearer {gateway.key}")]
        for method, path, headers, status in (
            ("POST", "/v1beta/models/chat-1:countTokens", key, 404),
            ("GET", "/v1/models/chat-1:generateContent", key, 405),
            ("POST", "/v1/models/chat-1", bearer, 404),
            ("DELETE", "/v1/models/chat-1", bearer, 405),
            ("GET", "/v1/chat/completions", bearer, 404),
            ("GET", "/v1/responses/resp_1", bearer, 404),
            ("POST", "/v1/responses/responses", bearer, 404),
        ):
            found = await call(gateway.app, method, path, headers=headers, content=b"{}")
            assert found.status == status, (method, path, found.status, found.body)


def make_file_message(file_id: str, times: int = 1) -> list[dict[str, Any]]:
    part = {"type": "file", "file": {"file_id": file_id}}
    return [{"role": "user", "content": [{"type": "text", "text": "Read"}, *[part] * times]}]


async def put_file(gateway: LlmGateway, purpose: str = "user_data") -> str:
    made = await Cabinet(gateway).make(b"bytes", purpose=purpose, filename="a.pdf")
    return str(made["id"])


async def test_own_file_in_a_prompt_is_inlined() -> None:
    async with serve(answer) as (gateway, provider):
        file_id = await put_file(gateway)
        found = await gateway.chat(messages=make_file_message(file_id))

        assert found.status == 200, found.body
        (message,) = provider.received[0].body["messages"]
        assert message["content"][1]["file"] == {
            "filename": "a.pdf",
            "file_data": "data:application/pdf;base64,Ynl0ZXM=",
        }


async def test_foreign_unknown_and_batch_files_in_a_prompt_are_404() -> None:
    async with serve(answer) as (gateway, provider):
        own, batch = await put_file(gateway), await put_file(gateway, "batch")
        foreign = await gateway.chat(key=gateway.other_key, messages=make_file_message(own))
        unknown = await gateway.chat(messages=make_file_message("file-unknown"))
        of_batch = await gateway.chat(messages=make_file_message(batch))

        for found in (foreign, unknown, of_batch):
            assert (found.status, found.json["error"]["code"]) == (404, "file_not_found")
        assert not provider.received


async def test_file_that_is_named_often_is_refused_before_it_is_read() -> None:
    async with serve(answer) as (gateway, provider):
        messages = make_file_message(await put_file(gateway), 17)
        found = await gateway.chat(messages=messages)

        assert (found.status, found.json["error"]["code"]) == (413, "request_too_large")
        assert not provider.received


@pytest.mark.parametrize("padding", [0, LARGE_BYTES], ids=["usual", "large"])
@pytest.mark.parametrize("number", ["1e999", "9" * 400])
async def test_number_beyond_a_double_is_invalid_json(number: str, padding: int) -> None:
    """It could not be passed on as it is."""
    async with serve(answer) as (gateway, provider):
        text = orjson.dumps({**BODY, "user": "u" * padding}).decode()
        raw = f'{text[:-1]},"temperature":{number}}}'.encode()
        found = await gateway.create(raw, path=CHAT)

        assert (found.status, found.json["error"]["code"]) == (400, "invalid_json")
        assert not provider.received


async def test_body_nested_too_deeply_is_400_in_every_format() -> None:
    nested: Any = {}
    for _ in range(240):
        nested = [nested]
    async with serve(answer) as (gateway, provider):
        for path, fields in (
            (CHAT, {"messages": BODY["messages"]}),
            ("/v1/responses", {"input": "Hi"}),
        ):
            body = {"model": "chat-1", "metadata": nested, **fields}
            found = await gateway.create(body, path=path)
            assert found.status == 400, found.body
        assert not provider.received


async def test_second_credential_is_tried_when_the_first_is_refused() -> None:
    async with serve(fail_with(401), answer) as (gateway, provider):
        gateway.give_credentials(provider, "first", "second")
        found = await gateway.chat()

        assert found.status == 200, found.body
        used = [request.headers["authorization"] for request in provider.received]
        assert used == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(("status", "expected"), [(401, 502), (429, 429)])
async def test_error_stays_the_same_while_the_only_credential_rests(
    status: int, expected: int
) -> None:
    async with serve(fail_with(status)) as (gateway, provider):
        found = [await gateway.chat() for _ in range(2)]

        assert [answer.status for answer in found] == [expected] * 2
        assert len(provider.received) == 1
        # rate headers would describe the account's limit, and the 429 is of the provider's (§12.4)
        shown = [any(name.startswith("x-ratelimit") for name in answer.headers) for answer in found]
        assert shown == [expected != 429] * 2


async def test_unknown_upstream_model_does_not_open_the_circuit() -> None:
    async def miss(reply: Reply, received: Received) -> None:
        if received.body["messages"][0]["content"] == "miss":
            await reply.whole({"error": {"message": "no such model"}}, 404)
        else:
            await reply.whole(make_chat_answer())

    async with serve(miss) as (gateway, _):
        for _ in range(10):
            missed = await gateway.chat(messages=[{"role": "user", "content": "miss"}])
            assert missed.status == 502
        assert (await gateway.chat()).status == 200


async def test_large_bodies_of_streams_leave_their_slots_to_others() -> None:
    running, may_end = 0, asyncio.Event()

    async def wait(reply: Reply, _: Received) -> None:
        nonlocal running
        await reply.begin()
        frames = make_chat_chunks("Hello")
        await reply.chunk(frames[0])
        running += 1
        await may_end.wait()
        for frame in frames[1:]:
            await reply.chunk(frame)
        await reply.end()

    async with serve(wait) as (gateway, _):
        messages = [{"role": "user", "content": "x" * 300_000}]
        calls = [
            asyncio.create_task(gateway.chat(messages=messages, stream=True)) for _ in range(12)
        ]
        await wait_for(lambda: running == 12)
        may_end.set()
        assert {found.status for found in await asyncio.gather(*calls)} == {200}


async def test_body_beyond_4_mib_needs_a_declared_length() -> None:
    async with serve(answer) as (gateway, _):
        messages = [{"role": "user", "content": "x" * (5 * 1024 * 1024)}]
        content = orjson.dumps({**BODY, "messages": messages})
        length = [("Content-Length", str(len(content)))]

        assert (await gateway.create(content, path=CHAT)).status == 413
        assert (await gateway.create(content, path=CHAT, headers=length)).status == 200


async def test_largest_bodies_beyond_an_accounts_share_are_503_and_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "LargeBodies", partial(LargeBodies, wait_seconds=0.05))
    monkeypatch.setattr(calls, "MOST_LARGEST", 14)
    waiting, may_end = 0, asyncio.Event()

    async def wait(reply: Reply, _: Received) -> None:
        nonlocal waiting
        waiting += 1
        await may_end.wait()
        await reply.whole(make_chat_answer())

    async with serve(wait) as (gateway, _):
        messages = [{"role": "user", "content": "x" * (5 * 1024 * 1024)}]
        content = orjson.dumps({**BODY, "messages": messages})
        headers = [("Content-Length", str(len(content)))]

        def send(key: str) -> Any:
            return asyncio.create_task(gateway.create(content, path=CHAT, key=key, headers=headers))

        first = send(gateway.key)
        await wait_for(lambda: waiting == 1)
        refused = await send(gateway.key)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        # a file in a prompt takes what it has, not a place of its own
        file_id = await put_file(gateway)
        second = asyncio.create_task(gateway.chat(messages=make_file_message(file_id)))
        other = send(gateway.other_key)
        await wait_for(lambda: waiting == 3)
        may_end.set()
        assert [(await task).status for task in (first, second, other)] == [200, 200, 200]
        assert len(await gateway.close()) == 3, "the refused one was never charged"
