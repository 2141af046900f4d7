"""Answers and streams as unmodified SDKs read them (contract A, C)."""

from typing import Any

import httpx2
import openai
import orjson
import pytest
from google import genai
from google.genai import types

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.chat_stream import ChatStream
from gateway_core.llm.formats.exchange import Exchange, plan_exchange
from gateway_core.llm.formats.google_stream import GoogleStream
from gateway_core.llm.formats.requests import read_generate
from gateway_core.llm.formats.responses_stream import ResponsesStream
from gateway_core.llm.formats.sse import ErrorForm
from tests.fakes.llm_calls import BODIES, exchange
from tests.fakes.llm_streams import (
    chat_chunks,
    cut,
    google_chunks,
    responses_events,
    run_stream,
    write_frames,
)

TEXTS = ("He", "llo ", "wörld")
FAILURE = ErrorForm("It failed.", 503, "server_error", "service_unavailable", "UNAVAILABLE")
EVENTS = "text/event-stream; charset=utf-8"
PIECES = range(0, 10_000, 37)


def transport(body: bytes, media_type: str = EVENTS) -> httpx2.MockTransport:
    headers = {"content-type": media_type}
    return httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, content=body))


def open_openai(body: bytes, media_type: str = EVENTS) -> openai.OpenAI:
    return openai.OpenAI(
        api_key="sk-x",
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=transport(body, media_type)),
        _strict_response_validation=True,
    )


def open_genai(body: bytes) -> genai.Client:
    options = types.HttpOptions(
        base_url="http://gateway", httpx_client=httpx2.Client(transport=transport(body))
    )
    return genai.Client(api_key="sk-x", http_options=options)


def chat_body(*, include: bool) -> bytes:
    upstream = write_frames([*chat_chunks(*TEXTS), b"[DONE]"])
    stream = ChatStream("m", include_usage=include)
    return stream.keep_alive() + run_stream(stream, cut(upstream, PIECES))


@pytest.mark.parametrize("include", [True, False])
def test_openai_reads_chat_streams(include: bool) -> None:
    client = open_openai(chat_body(include=include))
    with client.chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "".join(TEXTS)
    assert completion.model == "m"
    assert (completion.usage is not None) == include


def test_openai_reads_responses_streams() -> None:
    upstream = write_frames(responses_events(*TEXTS), named=True)
    silent = ResponsesStream("m", 5)
    early = silent.keep_alive() + silent.keep_alive()
    client = open_openai(early + run_stream(silent, cut(upstream, PIECES)))
    with client.responses.stream(model="m", input="hi") as stream:
        response = stream.get_final_response()
    assert (response.output_text, response.model) == ("".join(TEXTS), "m")
    assert response.usage
    assert response.usage.input_tokens_details.cached_tokens == 0


def test_genai_reads_streams() -> None:
    upstream = write_frames(google_chunks(*TEXTS), line_end=b"\r\n")
    body = run_stream(GoogleStream("m"), cut(upstream, PIECES))
    heartbeat = GoogleStream("m").keep_alive()
    client = open_genai(heartbeat + body.replace(b"\n\n", b"\n\n" + heartbeat))
    chunks = list(client.models.generate_content_stream(model="m", contents="hi"))
    assert "".join(chunk.text or "" for chunk in chunks) == "".join(TEXTS)
    assert {chunk.model_version for chunk in chunks} == {"m"}
    assert chunks[-1].usage_metadata
    assert chunks[-1].usage_metadata.total_token_count == 12


def translate(exchange: Exchange, *chunks: Any) -> bytes:
    return run_stream(exchange.open_stream(), cut(write_frames(chunks), PIECES))


CHAT_CALL = chat_chunks("")[1] | {
    "choices": [
        {
            "index": 0,
            "delta": {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":1}'},
                    }
                ]
            },
            "finish_reason": None,
        }
    ]
}
GOOGLE_CALL = google_chunks("")[0] | {
    "candidates": [
        {"content": {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]}}
    ]
}


def test_openai_reads_chat_streams_of_google() -> None:
    options = {"include_usage": True}
    planned = exchange(Format.CHAT, Format.GOOGLE, stream=True, stream_options=options)
    body = translate(planned, GOOGLE_CALL, *google_chunks(*TEXTS))
    with open_openai(body).chat.completions.stream(model="m", messages=[]) as stream:
        completion = stream.get_final_completion()
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "".join(TEXTS)
    assert choice.message.tool_calls
    assert choice.message.tool_calls[0].function.arguments == '{"a":1}'
    assert completion.usage
    assert completion.usage.total_tokens == 12


@pytest.mark.parametrize("upstream", [Format.CHAT, Format.GOOGLE])
def test_openai_reads_responses_streams_of_other_formats(upstream: Format) -> None:
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": False}
    planned = exchange(Format.RESPONSES, upstream, stream=True, tools=[tool])
    chunks = chat_chunks(*TEXTS)
    if upstream is Format.CHAT:
        body = translate(planned, *chunks[:-2], CHAT_CALL, *chunks[-2:], b"[DONE]")
    else:
        body = translate(planned, GOOGLE_CALL, *google_chunks(*TEXTS))
    with open_openai(body).responses.stream(model="m", input="hi") as stream:
        response = stream.get_final_response()
    assert response.output_text == "".join(TEXTS)
    [function] = [item for item in response.output if item.type == "function_call"]
    assert (function.name, function.arguments) == ("f", '{"a":1}')
    assert response.usage
    assert response.usage.output_tokens in (3, 5)


@pytest.mark.parametrize("event_stream", [True, False])
def test_genai_reads_streams_of_chat(event_stream: bool) -> None:
    call = read_generate(
        BODIES[Format.GOOGLE], 9, model_id="m", stream=True, event_stream=event_stream
    )
    chunks = chat_chunks(*TEXTS)
    planned = plan_exchange(call, Format.CHAT, "up", 5)
    body = translate(planned, *chunks[:-2], CHAT_CALL, *chunks[-2:], b"[DONE]")
    if not event_stream:
        body = write_frames(orjson.loads(body))
    received = list(open_genai(body).models.generate_content_stream(model="m", contents="hi"))
    parts = [
        part
        for chunk in received
        for part in (chunk.candidates or [types.Candidate()])[0].content.parts or ()
    ]
    assert "".join(part.text or "" for part in parts) == "".join(TEXTS)
    [function] = [part.function_call for part in parts if part.function_call]
    assert (function.name, function.args) == ("f", {"a": 1})
    assert received[-1].usage_metadata.total_token_count == 14


def test_openai_reads_whole_answers_of_google() -> None:
    raw = orjson.dumps(google_chunks("Hi")[0])
    answer, _ = exchange(Format.CHAT, Format.GOOGLE).complete(raw)
    completion = open_openai(orjson.dumps(answer), "application/json").chat.completions.create(
        model="m", messages=[]
    )
    assert completion.choices[0].message.content == "Hi"

    answer, _ = exchange(Format.RESPONSES, Format.GOOGLE).complete(raw)
    response = open_openai(orjson.dumps(answer), "application/json").responses.create(
        model="m", input="hi"
    )
    assert response.output_text == "Hi"


def test_sdks_raise_errors_in_mid_stream() -> None:
    chat = ChatStream("m", include_usage=False)
    body = chat.feed(write_frames(chat_chunks(*TEXTS)[:3])) + chat.fail(FAILURE)
    stream = open_openai(body).chat.completions.create(model="m", messages=[], stream=True)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "service_unavailable"

    responses = ResponsesStream("m", 5)
    body = responses.feed(write_frames(responses_events(*TEXTS)[:5], named=True))
    body += responses.fail(FAILURE)
    events = open_openai(body).responses.create(model="m", input="hi", stream=True)
    with pytest.raises(openai.APIError) as caught:
        list(events)
    assert caught.value.code == "service_unavailable"

    google = GoogleStream("m")
    body = google.feed(write_frames(google_chunks(*TEXTS)[:2])) + google.fail(FAILURE)
    with pytest.raises(genai.errors.APIError) as failed:
        list(open_genai(body).models.generate_content_stream(model="m", contents="hi"))
    assert (failed.value.code, failed.value.status) == (503, "UNAVAILABLE")
