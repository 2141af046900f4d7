"""Words for the end of an answer: which are failures, and what the others are in each format."""

import re
from typing import Any

from gateway_core.llm.formats.failures import ReportedError

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
"""Values of `finish_reason` that the SDK accepts in strict mode (§7.2)."""

_FAILURE = re.compile(
    r"abort|busy|cancel|capacity|crash|disconnect|error|exhausted|expired|fail|insufficient|internal"
    r"|interrupt|killed|memory|network|(?:^|_)oom|overload|preempt|quota|rate_?limit|reset|throttl"
    r"|timed?_?out|unavailable"
)
"""Words of a provider that could not go on, in lower case."""
_UNUSABLE = re.compile(
    r"invalid_(?:function|tool)|malformed|missing_thought|too_many_tool|unexpected"
)
"""Words for output of the model that cannot be used."""
_NEAREST = {
    "stop": (
        "complete completed done end end_turn eos eos_token finish finished stop_sequence"
        " stop_token stopped"
    ),
    "length": (
        "context_length_exceeded context_window_exceeded max_length max_output_tokens max_tokens"
        " model_context_window_exceeded model_length token_limit"
    ),
    "tool_calls": "function_calls tool_call tool_use",
    "content_filter": (
        "blocked blocklist content_filtered filtered guardrail_intervened"
        " image_prohibited_content image_recitation image_safety language model_armor"
        " moderation prohibited_content recitation refusal safety sensitive spii"
    ),
}
_CHAT = {word: chat for chat, words in _NEAREST.items() for word in words.split()} | {
    word: word for word in FINISH_REASONS
}
_RESPONSES = {"length": "max_output_tokens", "content_filter": "content_filter"}
_GOOGLE = {"length": "MAX_TOKENS", "content_filter": "SAFETY", None: "OTHER"}


def check_reason(reason: Any) -> None:
    """Raise ReportedError for the word of an answer that failed."""
    if not isinstance(reason, str) or reason in FINISH_REASONS:
        return
    word = reason.lower().replace("-", "_")
    is_model = _UNUSABLE.search(word) is not None
    if is_model or _FAILURE.search(word):
        raise ReportedError("", word, is_model=is_model)


def to_chat_reason(reason: Any) -> str | None:
    """Return the word of chat that a provider's word means; None where chat has none."""
    if not reason or not isinstance(reason, str):
        return "stop"
    return _CHAT.get(reason.lower().replace("-", "_"))


def is_cut_by(reason: Any) -> bool:
    """Return whether a reason of chat means that the answer is not whole."""
    return to_chat_reason(reason) in (*_RESPONSES, None)


def to_google_reason(reason: Any) -> str:
    """Return Google's word for a reason of chat."""
    return _GOOGLE.get(to_chat_reason(reason), "STOP")


def to_response_end(reason: Any) -> tuple[str, dict[str, str] | None]:
    """Return `status` and `incomplete_details` of a Responses object for a reason of chat.

    An unknown reason makes it incomplete without details, for which there is no honest word.
    """
    word = to_chat_reason(reason)
    if word in _RESPONSES:
        return "incomplete", {"reason": _RESPONSES[word]}
    return ("incomplete" if word is None else "completed"), None
