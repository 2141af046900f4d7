"""Answers that are no streams, of a provider that speaks the client's format (§7.2, §7.3, §8.4)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway_core.llm.formats import provider_json
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    as_object,
    as_objects,
    read_index,
)
from gateway_core.llm.formats.chat_message import (
    CallPieces,
    adopt_others,
    mark_unreadable,
    regularize,
)
from gateway_core.llm.formats.estimates import complete_usage
from gateway_core.llm.formats.failures import ReportedError, find_error
from gateway_core.llm.formats.output import measure_answer, measure_plain
from gateway_core.llm.formats.reasons import check_reason
from gateway_core.llm.formats.usage import (
    fill_chat_usage,
    fill_google_usage,
    fill_responses_usage,
    to_chat_usage,
    to_google_usage,
    to_responses_usage,
)

MOST_REASONS = 16
MOST_REASON_LENGTH = 64
"""What is kept of a provider's finish reasons for traces."""

_NO_REASONS = frozenset({"", "in_progress", "none", "null", "undefined", "unspecified"})
"""Words of providers for an answer that goes on."""
GOOGLE_FIELDS = frozenset({"candidates", "promptFeedback", "usageMetadata"})
"""Fields of which each answer and each chunk of Google has one."""
_REQUIRED = {Format.CHAT: "choices", Format.RESPONSES: "output"}


_USAGES: dict[Format, tuple[str, Callable[[TokenUsage], dict[str, Any]]]] = {
    Format.CHAT: ("usage", to_chat_usage),
    Format.RESPONSES: ("usage", to_responses_usage),
    Format.GOOGLE: ("usageMetadata", to_google_usage),
}
"""Fields of answers that have the usage, and how it is written."""


def list_finish_reasons(document: dict[str, Any], format_: Format) -> list[str]:
    """Why the choices in an answer or chunk ended; empty for Responses, which have no such word."""
    match format_:
        case Format.CHAT:
            ends = [choice.get("finish_reason") for choice in as_objects(document.get("choices"))]
        case Format.GOOGLE:
            ends = [each.get("finishReason") for each in as_objects(document.get("candidates"))]
        case Format.RESPONSES:
            ends = []
    reasons = [reason[:MOST_REASON_LENGTH] for reason in map(read_reason, ends) if reason]
    return reasons[:MOST_REASONS]


def read_reason(reason: Any) -> str | None:
    """Return why a choice ended, in the provider's word; None while it goes on."""
    if not reason or not isinstance(reason, str) or reason.endswith("_UNSPECIFIED"):
        return None
    return None if reason.strip().lower() in _NO_REASONS else reason


def find_reason(message: Mapping[str, Any]) -> str:
    """Return the reason of chat where a provider ends a message, or a delta, without one."""
    if message.get("tool_calls"):
        return "tool_calls"
    return "function_call" if message.get("function_call") else "stop"


class ChoiceEnds:
    """Which of the choices (or candidates) of a stream have ended."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, str | None] = {}
        """Choices, and the reason that their output is; None for those that have ended."""

    def note(self, choices: Iterable[dict[str, Any]]) -> Sequence[str]:
        """Note the choices of a chunk. Return the reasons of those that it ends."""
        reasons: Sequence[str] = ()
        for place, choice in enumerate(choices):
            index = choice.get("index")
            if type(index) is not int:
                index = place
            reason = choice.get("finish_reason") or choice.get("finishReason")
            if reason and read_reason(reason):
                self._open[index] = None
                reasons = (*reasons, reason)
            elif self._open.setdefault(index, "stop") == "stop":
                delta = choice.get("delta")
                if isinstance(delta, dict):
                    self._open[index] = find_reason(delta)
        return reasons

    @property
    def has_any(self) -> bool:
        """Return whether there was a choice."""
        return bool(self._open)

    @property
    def are_all(self) -> bool:
        """Return whether there was a choice, and each one has ended."""
        return bool(self._open) and not self.list_open()

    def list_open(self) -> list[tuple[int, str]]:
        """Return the choices that go on, and the reason for a mere end of each."""
        return sorted((index, word) for index, word in self._open.items() if word is not None)


def parse_answer(raw: bytes) -> dict[str, Any]:
    """Return the object in a provider's answer. InvalidAnswer if there is none; ReportedError."""
    try:
        document = provider_json.load(raw)
    except ValueError as error:
        raise InvalidAnswer("The answer is not JSON.") from error
    # most answers do not even have the word
    reported = find_error(document) if raw.find(b"error") >= 0 else None
    if reported is not None:
        raise reported
    if not isinstance(document, dict):
        raise InvalidAnswer("The answer is no object.")
    return document


def complete_answer(call: LlmCall, document: dict[str, Any], upstream: Format) -> TokenUsage:
    """Correct an answer of a provider of the format `upstream`, in place, and return its usage.

    The model is the public id, and values that the SDK rejects are replaced. Without usage in the
    answer the returned one is estimated and the answer stays without. InvalidAnswer; ReportedError
    where the reason of its end is a failure.
    """
    name, write_usage = _USAGES[upstream]
    has_usage = isinstance(document.get(name), dict)
    required = _REQUIRED.get(upstream)
    if required and not isinstance(document.get(required), list):
        raise InvalidAnswer(f"The answer has no {required}.")
    for word in list_finish_reasons(document, upstream):
        check_reason(word)
    match upstream:
        case Format.CHAT:
            usage = fill_chat_usage(document)
            document["model"] = call.model_id
            if "object" in document:
                document["object"] = "chat.completion"
            for place, choice in enumerate(as_objects(document["choices"])):
                choice["index"] = read_index(choice, place)
                message = choice.get("message")
                if not isinstance(message, dict):
                    message = choice["message"] = as_object(choice.get("delta"))
                if call.format is not Format.CHAT:
                    adopt_others(message)
                if measure_plain(message) is None:
                    regularize(message, CallPieces())
                if "role" in message:
                    message["role"] = "assistant"
                reason = read_reason(choice.get("finish_reason"))
                choice["finish_reason"] = reason or find_reason(message)
        case Format.RESPONSES:
            usage = fill_responses_usage(document)
            document["model"] = call.model_id
            mark_unreadable(document["output"])
            if document.get("status") in ("failed", "cancelled"):
                raise ReportedError("The response failed.")
        case Format.GOOGLE:
            # a prompt that is blocked has no candidates
            if not isinstance(document.get("candidates", []), list) or GOOGLE_FIELDS.isdisjoint(
                document
            ):
                raise InvalidAnswer("The answer has no candidates.")
            for candidate in as_objects(document.get("candidates")):
                if read_reason(candidate.get("finishReason")) is None:
                    candidate.pop("finishReason", None)
            usage = fill_google_usage(document)
            document["modelVersion"] = call.model_id
    if usage is not None and usage.input and usage.output:
        return usage
    completed = complete_usage(call, usage, measure_answer(upstream, document))
    if has_usage and completed is not usage:
        document[name] = write_usage(completed)
    return completed
