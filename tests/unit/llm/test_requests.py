"""Validation of requests, and the bodies sent for them (contract §7.2, §7.3, §7.5, §8.4)."""

import base64
from typing import Any

import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.bounds import IMAGE_TOKENS, ITEM_TOKENS, TEMPLATE_TOKENS, bound_input
from gateway_core.llm.formats.bodies import FileContent, google_path, inline_files
from gateway_core.llm.formats.calls import FileReference, Format, LlmCall, encode_body
from gateway_core.llm.formats.exchange import plan_exchange
from tests.fakes.llm_calls import BODIES, USER, read

BESIDE = TEMPLATE_TOKENS + 300
"""More than what is beside the only image of a prompt."""
PIXEL = "data:image/png;base64," + "A" * 100_000


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
        {"input": [{"type": "additional_tools", "tools": [{"type": "file_search"}]}]},
        "unsupported_parameter",
        "input",
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
    (
        C,
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
        "unsupported_parameter",
        "messages",
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
    "https://generativelanguage。googleapis。com/v1beta/files/abc",
    "https://generativelanguage.googleapis.com\\@example.com/v1beta/files/abc",
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
    assert read(G, contents=[{"parts": [part]}]).is_open


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
        (C, {"n": 2, "best_of": 4}, (None, 4)),
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


URL = "https://x/y"
AUDIO = {"type": "input_audio", "input_audio": {"data": "A" * 4000, "format": "wav"}}


@pytest.mark.parametrize(
    ("format_", "changes"),
    [
        (C, {"messages": ask({"type": "image_url", "image_url": {"url": "data:video/mp4,A"}})}),
        (C, {"messages": ask({"type": "video_url", "video_url": {"url": URL}})}),
        (C, {"messages": ask(AUDIO)}),
        (C, {"messages": ask({"type": "file", "file": {"file_data": "data:application/pdf,A"}})}),
        (C, {"messages": [{"role": "user", "content": AUDIO}]}),
        (C, {"mm_processor_kwargs": {"max_pixels": 1_000_000_000}}),
        (C, {"chat_template": "{% for i in range(1000000) %}x{% endfor %}"}),
        (R, {"input": ask({"type": "input_file", "file_url": URL})}),
        (R, {"input": ask({"type": "input_file", "file_data": "data:application/pdf,A"})}),
        (R, {"input": ask({"type": "input_audio", "input_audio": {"data": "A"}})}),
        (R, {"tools": [{"type": "web_search"}]}),
        (G, {"contents": [{"parts": [{"fileData": {"fileUri": URL}}]}]}),
        (G, {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/flac", "data": "A"}}]}]}),
        (G, {"contents": [{"parts": [{"inline_data": {"mime_type": "video/mp4", "data": "A"}}]}]}),
    ],
)
def test_only_the_models_limit_bounds_documents_sound_and_what_is_fetched(
    format_: Format, changes: dict[str, Any]
) -> None:
    call = read(format_, **changes)
    assert call.is_open
    assert not read(format_).is_open
    assert bound_input(call.input_bound, 128_000, is_open=True) == 128_000
    assert bound_input(call.input_bound, None, is_open=True) > 1_000_000


def test_input_is_bound_by_the_models_limit_and_estimated_by_its_text() -> None:
    call = read(C, messages=ask({"type": "text", "text": "x" * 400_000}))
    assert bound_input(call.input_bound, None, is_open=False) > 400_000
    assert bound_input(call.input_bound, 128_000, is_open=False) == 128_000
    assert 100_000 <= call.input_estimate < 100_100
    assert read(C, messages=ask(AUDIO)).input_estimate < 5_000


@pytest.mark.parametrize(
    ("format_", "changes"),
    [
        (R, {"input": [{"type": "image_generation_call", "id": "i", "result": "A" * 9000}]}),
        (
            R,
            {
                "input": [
                    {
                        "type": "computer_call_output",
                        "call_id": "c",
                        "output": {"type": "computer_screenshot", "image_url": URL},
                    }
                ]
            },
        ),
        (C, {"messages": [{"role": "tool", "content": [{"type": "image_url"}]}]}),
    ],
)
def test_images_of_tools_count_as_images(format_: Format, changes: dict[str, Any]) -> None:
    call = read(format_, **changes)
    assert IMAGE_TOKENS < call.input_bound < IMAGE_TOKENS + BESIDE
    assert not call.is_open


def test_tools_count_twice_and_every_message_what_separates_it() -> None:
    plain, tools = read(C).input_bound, [{"type": "function", "function": {"name": "x" * 1000}}]
    assert read(C, tools=tools).input_bound > plain + 2000
    assert read(C, messages=[{}] * 100).input_bound > plain + 900


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
    call = read(format_, **changes)
    assert IMAGE_TOKENS < call.input_bound < IMAGE_TOKENS + BESIDE
    assert call.input_estimate < 1200


def test_text_counts_its_bytes() -> None:
    short, long = read(C), read(C, messages=ask({"type": "text", "text": "é" * 500}))
    assert short.input_bound == len(encode_body(short.body)) + TEMPLATE_TOKENS + ITEM_TOKENS
    assert long.input_bound >= short.input_bound + 950


def test_referenced_files_are_found_and_inlined() -> None:
    file = FileContent("a.pdf", "application/pdf", b"%PDF")
    image = FileContent("b.png", "image/png", b"\x89PNG")
    url = "data:application/pdf;base64," + base64.b64encode(b"%PDF").decode()
    part = {"type": "file", "file": {"file_id": "file-1"}, "cache": True}
    call = read(C, messages=[USER, *ask({"type": "text", "text": "x"}, part)])
    assert call.files == (
        FileReference("file-1", ("messages", 1, "content", 1, "file"), "messages"),
    )
    inlined = inline_files(call, {"file-1": file})
    assert inlined.body["messages"][1]["content"][1] == {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": url},
        "cache": True,
    }
    kept = call.body["messages"][1]["content"][1]
    assert kept["file"] == {"file_id": "file-1"}, "the original stays"
    assert (inlined.files, inlined.is_open) == ((), True)

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
    assert inlined.input_bound > call.input_bound + IMAGE_TOKENS
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
        encode_body(BODIES[C] | {"vendor": deep})
