"""Answers that are no streams, and their usage (contract §7.2, §7.3, §8.4)."""

from typing import Any

import orjson
import pytest

from gateway_core.llm.formats.answers import complete_answer, parse_answer
from gateway_core.llm.formats.calls import Format, InvalidAnswer, LlmCall, TokenUsage
from gateway_core.llm.formats.failures import ReportedError
from gateway_core.llm.formats.usage import (
    fill_responses_usage,
    read_chat_usage,
    read_google_usage,
    to_chat_usage,
    to_google_usage,
    to_responses_usage,
)
from tests.fakes.llm_calls import read


def complete(format_: Format, document: dict[str, Any]) -> tuple[dict[str, Any], TokenUsage]:
    call = LlmCall(
        format_, "acme/public", stream=False, body={}, input_bound=400, input_estimate=100
    )
    answer = parse_answer(orjson.dumps(document))
    usage = complete_answer(call, answer, format_)
    return answer, usage


@pytest.mark.parametrize(
    ("reason", "shown"), [("length", "length"), ("eos_token", "eos_token"), (None, "stop")]
)
def test_chat_answer_changes_in_model_and_missing_finish_reason_alone(
    reason: str | None, shown: str
) -> None:
    document = {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 5,
        "model": "up",
        "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        "vendor": [1],
    }
    answer, usage = complete(Format.CHAT, document)
    document["choices"][0]["finish_reason"] = shown
    assert answer == document | {"model": "acme/public"}
    assert usage == TokenUsage(3, 4)


def test_responses_answer_gets_missing_counters_and_keeps_others() -> None:
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "extra": 1}
    details = {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": None}
    document = {"id": "resp_7", "model": "up", "output": [], "usage": usage | details}
    answer, read = complete(Format.RESPONSES, document)
    assert answer["usage"] == usage | {
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    assert (answer["id"], answer["model"]) == ("resp_7", "acme/public")
    assert read == TokenUsage(3, 4, cached=2)


def test_google_answer_has_public_model() -> None:
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 4, "thoughtsTokenCount": 5}
    document = {"candidates": [], "usageMetadata": usage, "modelVersion": "up", "responseId": "r"}
    answer, read = complete(Format.GOOGLE, document)
    assert answer == document | {"modelVersion": "acme/public"}
    assert read == TokenUsage(3, 9, reasoning=5)


@pytest.mark.parametrize(
    ("format_", "document"),
    [
        (
            Format.CHAT,
            {
                "choices": [
                    {
                        "message": {
                            "content": "1234",
                            "tool_calls": [{"function": {"name": "ab", "arguments": "{}"}}],
                        }
                    }
                ]
            },
        ),
        (
            Format.RESPONSES,
            {"output": [{"content": [{"text": "123456"}]}, {"arguments": "{}"}]},
        ),
        (Format.GOOGLE, {"candidates": [{"content": {"parts": [{"text": "12345678"}]}}]}),
    ],
)
def test_missing_usage_is_estimated_and_stays_absent(
    format_: Format, document: dict[str, Any]
) -> None:
    answer, usage = complete(format_, document)
    assert usage == TokenUsage(100, 2, estimated=True)
    assert not {"usage", "usageMetadata"} & set(answer)


@pytest.mark.parametrize("raw", [b"", b"<html>", b"[]", b"null", b'{"a":'])
def test_answer_that_is_no_object_is_invalid(raw: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        parse_answer(raw)


@pytest.mark.parametrize("format_", Format)
def test_answer_without_output_is_invalid(format_: Format) -> None:
    for document in ({"id": "x"}, {"id": "x", "choices": None, "candidates": None}):
        with pytest.raises(InvalidAnswer):
            complete(format_, document)


def test_answer_may_begin_with_a_byte_order_mark() -> None:
    assert parse_answer(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


@pytest.mark.parametrize("junk", [-1, 1.5, "7", True, [7], 2**53, 1e18])
def test_usage_with_an_impossible_count_is_none(junk: Any) -> None:
    assert read_chat_usage({"prompt_tokens": junk, "completion_tokens": 2}) is None
    assert fill_responses_usage({"usage": {"input_tokens": 2, "output_tokens": junk}}) is None
    assert read_google_usage({"promptTokenCount": junk, "candidatesTokenCount": 2}) is None


def test_counts_may_be_floats_and_details_of_no_count_are_zero() -> None:
    usage = {"prompt_tokens": 7.0, "prompt_tokens_details": {"cached_tokens": -1}}
    assert read_chat_usage(usage) == TokenUsage(7, 0)


@pytest.mark.parametrize(
    "usage",
    [
        TokenUsage(100, 50, cached=40, reasoning=20),
        TokenUsage(100, 50, cached=40, cached_audio=30, audio=20, image=10, output_audio=15),
    ],
)
def test_usage_survives_every_format(usage: TokenUsage) -> None:
    assert read_chat_usage(to_chat_usage(usage)) == usage
    assert fill_responses_usage({"usage": to_responses_usage(usage)}) == usage
    assert read_google_usage(to_google_usage(usage)) == usage


def test_cache_writes_survive_formats_that_have_them() -> None:
    usage = TokenUsage(100, 50, cached=40, written=30, written_hour=10)
    assert read_chat_usage(to_chat_usage(usage)) == usage
    assert fill_responses_usage({"usage": to_responses_usage(usage)}) == usage


@pytest.mark.parametrize(
    ("format_", "document", "code", "status"),
    [
        (Format.CHAT, {"error": {"message": "no", "code": 502}}, None, 502),
        (Format.CHAT, {"error": {"message": "no", "code": "400"}, "choices": []}, None, 400),
        (Format.CHAT, {"object": "error", "message": "no", "code": 400}, None, 400),
        (Format.CHAT, {"choices": [{"error": {"message": "no", "code": 502}}]}, None, 502),
        (Format.CHAT, {"error": "no"}, None, None),
        (
            Format.RESPONSES,
            {"output": [], "status": "failed", "error": {"code": "server_error", "message": "no"}},
            "server_error",
            500,
        ),
        (Format.GOOGLE, [{"error": {"code": 400, "message": "no"}}], None, 400),
    ],
)
def test_answer_that_is_an_error_has_its_status(
    format_: Format, document: Any, code: str | None, status: int
) -> None:
    with pytest.raises(ReportedError) as caught:
        complete(format_, document)
    error = caught.value
    assert (error.message, error.code, error.status) == ("no", code, status)


@pytest.mark.parametrize("reason", ["FINISH_REASON_UNSPECIFIED", " ", 5, [], {}])
def test_reason_that_says_nothing_is_left_out_of_googles_answers(reason: Any) -> None:
    candidate = {"content": {"parts": [{"text": "x"}]}, "finishReason": reason}
    answer = {"candidates": [candidate]}
    complete_answer(read(Format.GOOGLE), answer, Format.GOOGLE)
    assert "finishReason" not in candidate
