"""Errors that providers report: in frames, in answers and beside an error status."""

import re
from typing import Any

from gateway_core.llm.formats.calls import as_object, as_objects
from gateway_core.llm.formats.sse import StreamFailed
from gateway_core.providers.http_answers import limit_wait

_WORDS = {
    400: (
        "bad_request bad_request_error bio_policy content_filter"
        " content_policy_violation context_length_exceeded cyber_policy empty_image_file"
        " failed_precondition failed_to_download_image image_content_policy_violation"
        " image_file_not_found image_file_too_large image_parse_error image_too_large"
        " image_too_small data_inspection_failed invalid_argument invalid_base64_image"
        " invalid_image invalid_image_format invalid_image_mode invalid_image_url invalid_parameter"
        " invalid_prompt invalid_request invalid_request_error invalid_type invalid_value"
        " misalignment_policy_violation missing_required_parameter out_of_range"
        " string_above_max_length unsupported_image_media_type unsupported_parameter"
        " unsupported_value"
    ),
    401: (
        "api_key_expired api_key_invalid authentication_error invalid_api_key"
        " invalid_authentication_error unauthenticated unauthorized"
    ),
    402: (
        "access_terminated account_deactivated arrearage billing_error billing_hard_limit_reached"
        " billing_not_active exceeded_current_quota_error insufficient_balance"
        " insufficient_credits insufficient_funds insufficient_quota payment_required"
    ),
    403: "access_denied forbidden permission_denied permission_error",
    404: "model_not_found not_found not_found_error",
    413: "request_too_large",
    429: (
        "rate_limit rate_limit_error rate_limit_exceeded rate_limit_reached"
        " rate_limit_reached_error requests_limit_exceeded resource_exhausted throttling"
        " throttling_allocation_quota throttling_burst_rate throttling_rate_quota"
        " tokens_limit_exceeded too_many_requests"
    ),
    500: "api_error internal internal_error internal_server_error server_error",
    503: (
        "engine_overloaded_error model_overloaded overloaded overloaded_error server_is_overloaded"
        " service_unavailable service_unavailable_error slow_down unavailable"
    ),
    504: "deadline_exceeded timeout timeout_error",
}
_STATUSES = {
    word.replace("_", ""): status for status, words in _WORDS.items() for word in words.split()
}
"""HTTP statuses that the words of providers stand for, in lower case without separators."""
_SEPARATORS = re.compile(r"[\W_]+")
_NAMES = (
    *("code", "status", "type", "http_code", "status_code", "http_status", "statusCode"),
    *("httpStatus", "httpStatusCode"),
)
_ACCOUNT_STATUSES = (401, 402)
_PUBLIC = (
    "bio_policy context_length_exceeded cyber_policy empty_image_file failed_to_download_image"
    " image_content_policy_violation image_file_not_found image_file_too_large image_parse_error"
    " image_too_large image_too_small invalid_base64_image invalid_image invalid_image_format"
    " invalid_image_mode invalid_image_url invalid_prompt misalignment_policy_violation"
    " rate_limit_exceeded server_error server_is_overloaded slow_down unsupported_image_media_type"
)
PUBLIC_CODES = frozenset(_PUBLIC.split())
"""Codes that a failed response names, for SDKs and agents know them: those of the Responses API
itself that say nothing of the gateway's account. Others become the one of their status."""

_RETRY = re.compile(
    r"\b(?:try(?:ing)? again|retry(?:ing)?(?:[-_ ]after)?|wait(?:ing)?|available(?: again)?|allowed"
    r"|replenished|resets?)\s*[:=]?\s*(?:(?:in|after|for|at least|about)\s*:?\s*)*"
    r"((?:\d+:)?\d+:\d\d\b|(?:\d+(?:\.\d+)?\s*(?:ms\b|milliseconds?|d(?:ays?)?(?=[\s\d.]|\b)"
    r"|h(?:ours?)?(?=[\s\d.]|\b)|m(?:in(?:ute)?s?)?(?=[\s\d.]|\b)|s(?:ecs?|econds?)?\b)?"
    r",?\s*(?:and\s+)?)+)",
    re.IGNORECASE,
)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {"ms": 0.001, "mi": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "s": 1.0, "": 1.0}
_DELAY = re.compile(r"\d+(?:\.\d+)?\s*(?:ms|s)?")
_DELAYS = (
    *("retryDelay", "retry_delay", "retry_after", "retryAfter", "retry_after_seconds"),
    *("retryAfterSeconds", "quotaResetDelay"),
)
_MILLISECONDS = ("retry_after_ms", "retryAfterMs")
_MOST_READ = 4096
_MOST_NUMBER = 1e15


class ReportedError(StreamFailed):
    """An error that the provider reported in a stream or an answer.

    `message` is the provider's own, to be redacted. `status` is an HTTP status, if it gave one, and
    `retry_after` the seconds for which it asks for no calls. `is_account`: it concerns the account
    of the gateway. `is_model`: the model wrote what cannot be used, so the provider works.
    """

    def __init__(
        self,
        message: str,
        code: str | None = None,
        status: int | None = None,
        *,
        retry_after: float | None = None,
        is_account: bool = False,
        is_model: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after
        self.is_account = is_account
        self.is_model = is_model


def find_error(document: Any) -> ReportedError | None:
    """Return the error that a frame or an answer reports, in any of the forms of providers."""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return None
    error, kind = document.get("error"), document.get("type")
    if kind == "error" or document.get("object") == "error":
        error = error or document
    elif kind == "response.failed":
        error = as_object(document.get("response")).get("error") or "The response failed."
    elif not error and "choices" in document:
        error = _find_choice_error(document["choices"])
        error = error or as_object(document.get("x_groq")).get("error")
    return read_error(error) if error else None


def read_error(error: Any) -> ReportedError:
    """Read the error object of a provider, or its text."""
    if isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        # the error of another gateway's provider
        error = {**error, **error["error"]}
    if not isinstance(error, dict):
        return ReportedError(error if isinstance(error, str) else "")
    message = error.get("message") or error.get("detail")
    text = message if isinstance(message, str) else ""
    names = [error.get(name) for name in _NAMES]
    words = [name for name in names if isinstance(name, str)]
    reasons = [each.get("reason") for each in as_objects(error.get("details"))]
    known = [_find_status(str(word)) for word in (*words, *reasons)]
    return ReportedError(
        text,
        next((word for word in words if not word.isdecimal()), None),
        next(filter(None, map(_read_status, names)), None) or next(filter(None, known), None),
        retry_after=_find_delay(error, text),
        is_account=any(status in _ACCOUNT_STATUSES for status in known),
    )


def _find_status(word: str) -> int | None:
    return _STATUSES.get(_SEPARATORS.sub("", word.lower()))


def _find_choice_error(choices: Any) -> Any:
    """Return the error in one of the choices of chat."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("error"):
            return choice["error"]
    return None


def _read_status(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    return value if type(value) is int and 400 <= value <= 599 else None


def _find_delay(error: dict[str, Any], text: str) -> float | None:
    """Return the seconds to wait in Google's RetryInfo, in a field of its own, or the message."""
    details = error.get("details")
    holders = [*as_objects(details), as_object(details), error, as_object(error.get("metadata"))]
    for holder in (*holders, *(as_object(each.get("metadata")) for each in holders)):
        for name in _DELAYS:
            if (wait := _read_delay(holder.get(name))) is not None:
                return wait
        for name in _MILLISECONDS:
            if (milliseconds := _read_number(holder.get(name))) is not None:
                return limit_wait(milliseconds / 1000)
    phrase = _RETRY.search(text[:_MOST_READ])
    return None if phrase is None else limit_wait(_read_span(phrase[1]))


def _read_delay(value: Any) -> float | None:
    """Return the seconds to wait in a field: a number, a text as `45.8s`, Google's duration."""
    if not isinstance(value, dict):
        seconds = _read_number(value)
        return None if seconds is None else limit_wait(seconds)
    seconds, nanos = _read_number(value.get("seconds")), _read_number(value.get("nanos"))
    if seconds is None and nanos is None:
        return None
    return limit_wait((seconds or 0.0) + (nanos or 0.0) * 1e-9)


def _read_number(value: Any) -> float | None:
    if isinstance(value, str) and _DELAY.fullmatch(value):
        return _read_span(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    # integers of JSON may be larger than a float
    return float(min(value, _MOST_NUMBER))


def _read_span(text: str) -> float:
    """Return the seconds in a text of numbers and units, or of hours, minutes and seconds."""
    if ":" in text:
        places = reversed(text.split(":"))
        return sum(float(number) * 60.0**place for place, number in enumerate(places))
    spans = ((float(number), unit.lower()) for number, unit in _SPAN.findall(text))
    return sum(number * _read_unit(unit) for number, unit in spans)


def _read_unit(unit: str) -> float:
    """Return the seconds of a unit of time, by its first letters."""
    return _UNITS.get("ms" if unit.startswith("milli") else unit[:2], _UNITS.get(unit[:1], 1.0))
