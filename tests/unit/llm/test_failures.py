"""What the errors and the last words of providers mean."""

from typing import Any

import pytest

from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.failures import ReportedError, find_error, read_error
from gateway_core.llm.formats.output import shows_output
from gateway_core.llm.formats.reasons import (
    check_reason,
    to_chat_reason,
    to_google_reason,
    to_response_end,
)

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 502}, 502),
        ({"code": "502"}, 502),
        ({"code": 5, "status": "UNAVAILABLE"}, 503),
        ({"code": "rate_limit_exceeded", "type": "tokens"}, 429),
        ({"code": "model_not_found", "type": "invalid_request_error"}, 404),
        ({"code": None, "type": "overloaded_error"}, 503),
        ({"code": "insufficient_quota"}, 402),
        ({"code": "unheard_of", "type": "invalid_request_error"}, 400),
        ({"code": "unheard_of"}, None),
        ({"code": True}, None),
        ({"code": 503.0}, 503),
        ({"code": "503 or so"}, None),
        ({"code": 10**30}, None),
        ({"code": -1}, None),
        ({"code": [503]}, None),
        ({"code": "TooManyRequests"}, 429),
        ({"code": "Throttling.RateQuota"}, 429),
        ({"type": "ServiceUnavailable"}, 503),
        ({"type": "BadRequestError"}, 400),
        ({"statusCode": 503}, 503),
        ({"error": {"code": 503}}, 503),
        ([{"code": 503}], 503),
        ([], None),
        ("text", None),
    ],
)
def test_status_is_that_of_the_number_or_else_of_the_words(error: Any, status: int | None) -> None:
    assert read_error(error).status == status


@pytest.mark.parametrize(
    ("error", "is_account"),
    [
        ({"code": 429, "type": "insufficient_quota"}, True),
        ({"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}, True),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, False),
        ({"code": 403, "status": "PERMISSION_DENIED"}, False),
    ],
)
def test_words_tell_errors_of_the_gateways_account(
    error: dict[str, Any], *, is_account: bool
) -> None:
    assert read_error(error).is_account == is_account


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ({"details": [{"retryDelay": "45.8s"}]}, 45.8),
        ({"details": [{"retryDelay": {"seconds": 7}}]}, 7),
        ({"details": [{"reason": "X"}, {"retryDelay": "900s"}]}, 120),
        ({"retry_after": 9}, 9),
        ({"message": "Please try again in 20s."}, 20),
        ({"message": "Please try again in 250ms. Visit our site."}, 1),
        ({"message": "Try again in 1m30.5s"}, 90.5),
        ({"message": "Please retry in 45.8s."}, 45.8),
        ({"message": "Please retry after 30 seconds."}, 30),
        ({"message": "Retry after 12"}, 12),
        ({"message": "Please wait 2 minutes and try again."}, 120),
        ({"message": "Please wait for 1 minute and 5 seconds."}, 65),
        ({"message": "Try again in 2h5m"}, 120),
        ({"message": "Try again in 3 milliseconds"}, 1),
        ({"message": "Limit 3, used 5. Try again later."}, None),
        ({"message": "Retry in vain"}, None),
        ({"message": "Please try again in -5s"}, None),
        ({"message": "Retry-After: 12"}, 12),
        ({"message": "retry_after=12"}, 12),
        ({"message": "Your quota will reset after 9s."}, 9),
        ({"message": "Limit resets in: 13s"}, 13),
        ({"message": "Request was throttled. Expected available in 17 seconds."}, 17),
        ({"message": "Quota will be replenished in 00:01:30."}, 90),
        ({"message": "Please retry in 3 days"}, 120),
        ({"message": f"Please retry in {'9' * 400}s"}, 120),
        ({"details": [{"retryDelay": "soon"}], "retry_after": "soon"}, None),
        ({"details": [{"retryDelay": "soon"}], "message": "Retry in 7s."}, 7),
        ({"details": [{"retryDelay": {"seconds": "45", "nanos": 800_000_000}}]}, 45.8),
        ({"details": [{"retryDelay": "9999999999s"}]}, 120),
        ({"details": {"retry_delay": 45}}, 45),
        ({"details": [{"metadata": {"quotaResetDelay": "45.5s"}}]}, 45.5),
        ({"retry_after": "9"}, 9),
        ({"retry_after": 10**400}, 120),
        ({"retry_after": True}, None),
        ({"retry_after_ms": 9500}, 9.5),
        ({"metadata": {"retry_after_seconds": 13}}, 13),
    ],
)
def test_seconds_to_wait_are_read_where_providers_say_them(
    error: dict[str, Any], seconds: float | None
) -> None:
    assert read_error(error).retry_after == seconds


@pytest.mark.parametrize(
    "document", [{"error": None, "choices": [{"error": None}]}, {"type": "x"}, [], None, 5, "x"]
)
def test_other_documents_report_no_error(document: Any) -> None:
    assert find_error(document) is None


def test_groq_reports_errors_beside_its_choices() -> None:
    reported = find_error({"choices": [], "x_groq": {"error": "It failed."}})
    assert reported is not None
    assert reported.message == "It failed."


@pytest.mark.parametrize(
    "word",
    [
        *("insufficient_system_resource", "error", "FAILED", "network_error", "rate_limited"),
        *("quota-exceeded", "INTERNAL", "out_of_memory", "oom", "server_busy", "preempted"),
    ],
)
def test_words_of_a_provider_that_could_not_go_on_are_failures(word: str) -> None:
    with pytest.raises(ReportedError) as caught:
        check_reason(word)
    assert not caught.value.is_model


@pytest.mark.parametrize(
    "word",
    [
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MISSING_THOUGHT_SIGNATURE",
        "MALFORMED_RESPONSE",
        "invalid-tool-call",
    ],
)
def test_output_that_cannot_be_used_is_a_failure_of_the_model(word: str) -> None:
    with pytest.raises(ReportedError) as caught:
        check_reason(word)
    assert caught.value.is_model


@pytest.mark.parametrize(
    ("word", "chat", "google", "response"),
    [
        ("stop", "stop", "STOP", ("completed", None)),
        (None, "stop", "STOP", ("completed", None)),
        ("", "stop", "STOP", ("completed", None)),
        ("eos_token", "stop", "STOP", ("completed", None)),
        ("tool_use", "tool_calls", "STOP", ("completed", None)),
        ("MAX_TOKENS", "length", "MAX_TOKENS", ("incomplete", {"reason": "max_output_tokens"})),
        ("sensitive", "content_filter", "SAFETY", ("incomplete", {"reason": "content_filter"})),
        ("max-tokens", "length", "MAX_TOKENS", ("incomplete", {"reason": "max_output_tokens"})),
        ("MODEL_ARMOR", "content_filter", "SAFETY", ("incomplete", {"reason": "content_filter"})),
        ("something_new", None, "OTHER", ("incomplete", None)),
    ],
)
def test_other_words_mean_the_nearest_honest_one(
    word: str | None, chat: str | None, google: str, response: tuple[str, Any]
) -> None:
    check_reason(word)
    assert to_chat_reason(word) == chat
    assert to_google_reason(word) == google
    assert to_response_end(word) == response


def of_chat(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def of_google(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [*parts]}}]}


@pytest.mark.parametrize(
    ("format_", "document", "is_output"),
    [
        (C, of_chat(role="assistant", content="", tool_calls=[], refusal=None), False),
        (C, of_chat(content=None, reasoning_content=""), False),
        (C, {"choices": []}, False),
        (C, of_chat(content=[{"type": "text", "text": ""}]), False),
        (C, of_chat(content=[{"type": "text", "text": "x"}]), True),
        (C, of_chat(reasoning_details=[{"type": "reasoning.text", "text": ""}]), False),
        (C, of_chat(content=" "), True),
        (C, of_chat(reasoning_content="Hm"), True),
        (C, of_chat(tool_calls=[{"index": 0, "function": {"name": "f"}}]), True),
        (C, of_chat(audio={"data": "x"}), True),
        (G, of_google({"text": ""}), False),
        (G, of_google({"text": "", "thought": True, "thoughtSignature": "x"}), False),
        (G, of_google({"text": "Hm", "thought": True}), True),
        (G, of_google({"functionCall": {"name": "f"}}), True),
        (G, of_google({"inlineData": {"data": "x"}}), True),
        (G, {"usageMetadata": {"promptTokenCount": 5}}, False),
        (R, {"type": "response.queued", "response": {}}, False),
        (R, {"type": "keepalive"}, False),
        (R, {"type": "codex.rate_limits", "plan_type": "pro"}, False),
        (R, {"type": "response.output_text.done", "text": ""}, False),
        (R, {"type": "response.output_text.done", "text": "x"}, True),
        (
            R,
            {"type": "response.output_item.done", "item": {"type": "reasoning", "summary": []}},
            False,
        ),
        (
            R,
            {"type": "response.output_item.added", "item": {"type": "message", "content": []}},
            False,
        ),
        (
            R,
            {"type": "response.output_item.added", "item": {"type": "reasoning", "summary": []}},
            False,
        ),
        (R, {"type": "response.output_item.added", "item": {"type": "function_call"}}, True),
        (R, {"type": "response.content_part.added", "part": {"text": ""}}, False),
        (R, {"type": "response.output_text.delta", "delta": ""}, False),
        (R, {"type": "response.output_text.delta", "delta": "x"}, True),
        (R, {"type": "response.web_search_call.searching"}, True),
    ],
)
def test_output_is_text_reasoning_calls_and_media(
    format_: Format, document: dict[str, Any], *, is_output: bool
) -> None:
    assert shows_output(document, format_) == is_output
