"""Validation of requests, and the bodies sent for them (contract §7.2, §7.3, §7.5, §8.4)."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.bodies import FileContent, google_path, inline_files
from gateway_core.llm.formats.calls import FileReference, Format, LlmCall, encode_body
from gateway_core.llm.formats.exchange import plan_exchange
from gateway_core.llm.formats.requests import (
    IMAGE_TOKENS,
    read_chat,
    read_generate,
    read_responses,
)

CHAT: dict[str, Any] = {"model": "acme/m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "acme/m", "input": "hi"}
GOOGLE: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
PIXEL = "data:image/png;base64," + "A" * 100_000


def generate(body: Mapping[str, Any], size: int) -> LlmCall:
    return read_generate(body, size, model_id="acme/m", stream=True)


Reader = Callable[[Mapping[str, Any], int], LlmCall]
READERS: dict[Format, tuple[Reader, dict[str, Any]]] = {
    Format.CHAT: (read_chat, CHAT),
    Format.RESPONSES: (read_responses, RESPONSES),
    Format.GOOGLE: (generate, GOOGLE),
}


def read(format_: Format, **changes: Any) -> LlmCall:
    reader, base = READERS[format_]
    body = {key: value for key, value in (base | changes).items() if value is not ...}
    return reader(body, len(encode_body(body)))


def to_upstream(call: LlmCall, model: str) -> dict[str, Any]:
    return plan_exchange(call, call.format, model, 1).body


def ask(*parts: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(parts)}]


C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
INVALID: list[tuple[Format, dict[str, Any], str, str]] = [
    (C, {"model": ...}, "missing_required_parameter", "model"),
    (C, {"model": None}, "missing_required_parameter", "model"),
    (C, {"model": 5}, "invalid_type", "model"),
    (C, {"model": ""}, "invalid_value", "model"),
    (C, {"messages": ...}, "missing_required_parameter", "messages"),
    (C, {"messages": "hi"}, "invalid_type", "messages"),
    (C, {"messages": []}, "invalid_value", "messages"),
    (C, {"stream": "yes"}, "invalid_type", "stream"),
    (C, {"stream_options": {}}, "invalid_value", "stream_options"),
    (C, {"stream": True, "stream_options": []}, "invalid_type", "stream_options"),
    (
        C,
        {"stream": True, "stream_options": {"include_usage": 1}},
        "invalid_type",
        "stream_options",
    ),
    (C, {"messages": ask({"type": "file", "file": {"file_id": 7}})}, "invalid_type", "messages"),
    (R, {"model": ...}, "missing_required_parameter", "model"),
    (R, {"input": ...}, "missing_required_parameter", "input"),
    (R, {"input": {}}, "invalid_type", "input"),
    (R, {"input": []}, "invalid_value", "input"),
    (R, {"stream": 0}, "invalid_type", "stream"),
    (R, {"background": "no"}, "invalid_type", "background"),
    (R, {"background": True}, "unsupported_parameter", "background"),
    (R, {"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
    (R, {"conversation": {"id": "conv_1"}}, "unsupported_parameter", "conversation"),
    (R, {"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
    (R, {"input": [{"type": "item_reference", "id": "i"}]}, "unsupported_parameter", "input"),
    (R, {"input": [{"id": "i"}]}, "unsupported_parameter", "input"),
    (
        R,
        {"input": [{"type": "computer_call_output", "output": {"file_id": "file-1"}}]},
        "unsupported_parameter",
        "input",
    ),
    (
        R,
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        "unsupported_parameter",
        "tools",
    ),
    (
        R,
        {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
        "unsupported_parameter",
        "tools",
    ),
    (
        R,
        {"tools": [{"type": "code_interpreter", "container": {"file_ids": ["file-1"]}}]},
        "unsupported_parameter",
        "tools",
    ),
    (
        R,
        {"tools": [{"type": "shell", "environment": {"container_id": "cntr_1"}}]},
        "unsupported_parameter",
        "tools",
    ),
    (G, {"contents": ...}, "missing_required_parameter", "contents"),
    (G, {"contents": {}}, "invalid_type", "contents"),
    (G, {"contents": []}, "invalid_value", "contents"),
    (G, {"cachedContent": "cachedContents/1"}, "unsupported_parameter", "cachedContent"),
    (G, {"cached_content": "cachedContents/1"}, "unsupported_parameter", "cachedContent"),
    (G, {"tools": [{"file_search": {}}]}, "unsupported_parameter", "tools"),
]
UPSTREAM_FILES = [
    "files/abc",
    "gs://bucket/object",
    "https://generativelanguage.googleapis.com/v1beta/files/abc",
    "https://storage.cloud.google.com./bucket/object",
    "http://[",
    7,
]


@pytest.mark.parametrize(("format_", "changes", "code", "param"), INVALID)
def test_invalid_requests_name_the_field(
    format_: Format, changes: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(format_, **changes)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert param in caught.value.message


@pytest.mark.parametrize("uri", UPSTREAM_FILES)
@pytest.mark.parametrize("field", ["fileData", "file_data"])
def test_google_files_in_storage_of_the_provider_are_refused(uri: Any, field: str) -> None:
    part = {field: {"fileUri": uri}}
    result = {"functionResponse": {"name": "f", "response": {}, "parts": [part]}}
    for parts in ([part], [result]):
        with pytest.raises(InvalidRequest) as caught:
            read(G, contents=[{"parts": parts}])
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "contents")
    with pytest.raises(InvalidRequest) as caught:
        read(G, systemInstruction={"parts": [part]})
    assert caught.value.param == "systemInstruction"


def test_google_files_elsewhere_are_allowed() -> None:
    part = {"fileData": {"fileUri": "https://www.youtube.com/watch?v=1"}}
    assert read(G, contents=[{"parts": [part]}]).input_bound > 10_000


@pytest.mark.parametrize("format_", Format)
def test_fields_that_are_not_validated_are_forwarded(format_: Format) -> None:
    extra = {"vendor": {"deep": [1.5, None, "é"]}, "stop": 7, "temperature": "warm"}
    body = to_upstream(read(format_, **extra), "up")
    for name, value in extra.items():
        assert body[name] == value


def test_nulls_are_absent() -> None:
    call = read(C, stream=None, stream_options=None)
    assert (call.stream, call.include_usage) == (False, False)
    nulls = dict.fromkeys(("previous_response_id", "conversation", "prompt", "background"))
    assert not read(R, **nulls, tools=None).stream


def test_openai_bodies_have_the_upstream_model_and_store_nothing() -> None:
    for format_ in (C, R):
        for changes in ({}, {"store": True}):
            body = to_upstream(read(format_, **changes), "up-1")
            assert (body["model"], body["store"]) == ("up-1", False)
    assert "stream_options" not in to_upstream(read(C), "up-1")


def test_chat_streams_always_ask_for_usage() -> None:
    for options in (None, {}, {"include_usage": False, "include_obfuscation": False}):
        call = read(C, stream=True, stream_options=options)
        expected = (options or {}) | {"include_usage": True}
        assert to_upstream(call, "up")["stream_options"] == expected
        assert not call.include_usage
    assert read(C, stream=True, stream_options={"include_usage": True}).include_usage


def test_google_has_its_model_in_the_path() -> None:
    assert "model" not in to_upstream(read(G, model="models/x"), "up")
    assert google_path("gemini-2", stream=False) == "/models/gemini-2:generateContent"
    assert google_path("models/gemini-2", stream=True) == (
        "/models/gemini-2:streamGenerateContent?alt=sse"
    )


@pytest.mark.parametrize(
    ("format_", "changes", "expected"),
    [
        (C, {}, (None, 1)),
        (C, {"max_tokens": 50, "n": 3}, (50, 3)),
        (C, {"max_tokens": 50, "max_completion_tokens": 70.0}, (70, 1)),
        (C, {"max_tokens": 8000, "max_completion_tokens": 1}, (8000, 1)),
        (R, {"max_output_tokens": 60}, (60, 1)),
        (G, {"generationConfig": {"maxOutputTokens": 80, "candidateCount": 2}}, (80, 2)),
        (G, {"generation_config": {"max_output_tokens": 80}}, (80, 1)),
    ],
)
def test_asked_maximum_of_output_is_read(
    format_: Format, changes: dict[str, Any], expected: tuple[int | None, int]
) -> None:
    call = read(format_, **changes)
    assert (call.max_output, call.choices) == expected


@pytest.mark.parametrize(
    ("format_", "changes", "param"),
    [
        (C, {"n": "8"}, "n"),
        (C, {"n": True}, "n"),
        (C, {"n": 129}, "n"),
        (C, {"max_tokens": -1}, "max_tokens"),
        (C, {"max_tokens": 1e300}, "max_tokens"),
        (R, {"max_output_tokens": "10"}, "max_output_tokens"),
        (G, {"generationConfig": {"candidateCount": "8"}}, "generationConfig"),
        (
            G,
            {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 9}},
            "maxOutputTokens",
        ),
        (G, {"generationConfig": {}, "generation_config": {}}, "generationConfig"),
        (G, {"tools": {"fileSearch": {}}}, "tools"),
        (G, {"contents": [{"parts": {"fileData": {"fileUri": "https://x/y"}}}]}, "contents"),
        (G, {"systemInstruction": {"parts": {"text": "x"}}}, "systemInstruction"),
    ],
)
def test_values_that_a_provider_might_read_otherwise_are_refused(
    format_: Format, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(format_, **changes)
    assert refused.value.param == param


def test_only_inline_images_are_bound_as_images() -> None:
    text = "data:text/plain;base64," + "A" * 100_000
    call = read(C, messages=ask({"type": "image_url", "image_url": {"url": text}}))
    assert call.input_bound > 100_000
    video = read(C, messages=ask({"type": "video_url", "video_url": {"url": "https://x/y"}}))
    assert video.input_bound > 65_536


@pytest.mark.parametrize(
    ("format_", "changes"),
    [
        (C, {"messages": ask({"type": "image_url", "image_url": {"url": PIXEL}})}),
        (R, {"input": ask({"type": "input_image", "image_url": PIXEL})}),
        (
            G,
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}]}]},
        ),
        (
            G,
            {"contents": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": PIXEL}}]}]},
        ),
    ],
)
def test_inline_images_count_a_fixed_number_of_tokens(
    format_: Format, changes: dict[str, Any]
) -> None:
    assert IMAGE_TOKENS < read(format_, **changes).input_bound < IMAGE_TOKENS + 300


def test_text_counts_its_bytes() -> None:
    short, long = read(C), read(C, messages=ask({"type": "text", "text": "é" * 500}))
    assert short.input_bound == len(encode_body(short.body))
    assert long.input_bound >= 1000


def test_referenced_files_are_found_and_inlined() -> None:
    file = FileContent("a.pdf", "application/pdf", b"%PDF")
    image = FileContent("b.png", "image/png", b"\x89PNG")
    url = "data:application/pdf;base64," + base64.b64encode(b"%PDF").decode()
    part = {"type": "file", "file": {"file_id": "file-1"}, "cache": True}
    call = read(C, messages=[*CHAT["messages"], *ask({"type": "text", "text": "x"}, part)])
    assert call.files == (
        FileReference("file-1", ("messages", 1, "content", 1, "file"), "messages"),
    )
    inlined = inline_files(call, {"file-1": file})
    assert inlined.body["messages"][1]["content"][1] == {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": url},
        "cache": True,
    }
    assert call.body["messages"][1]["content"][1] == part, "the original stays"
    assert (inlined.files, inlined.input_bound) == ((), call.input_bound + len(url))

    call = read(
        R,
        input=[
            *ask({"type": "input_file", "file_id": "file-1"}),
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "file_id": "file-2", "detail": "low"}],
            },
        ],
    )
    assert [reference.file_id for reference in call.files] == ["file-1", "file-2"]
    inlined = inline_files(call, {"file-1": file, "file-2": image})
    [message, output] = inlined.body["input"]
    assert message["content"] == [{"type": "input_file", "filename": "a.pdf", "file_data": url}]
    assert output["output"] == [
        {
            "type": "input_image",
            "detail": "low",
            "image_url": "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode(),
        }
    ]


def test_body_nested_too_deeply_is_invalid() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(InvalidRequest):
        encode_body(CHAT | {"vendor": deep})
