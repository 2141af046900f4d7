"""Answers that are no streams, of a provider that speaks the client's format (§7.2, §7.3, §8.4)."""

from collections.abc import Iterable, Sequence
from typing import Any

from gateway_core.llm.formats import provider_json
from gateway_core.llm.formats.calls import (
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    as_object,
    as_objects,
)
from gateway_core.llm.formats.chat_message import CallPieces, adopt_others, regularize
from gateway_core.llm.formats.failures import ReportedError, find_error
from gateway_core.llm.formats.output import measure_answer, measure_plain
from gateway_core.llm.formats.reasons import check_reason, choose_reason
from gateway_core.llm.formats.usage import (
    complete_usage,
    correct_google_usage,
    fill_chat_usage,
    fill_responses_usage,
    read_google_usage,
)

MOST_REASONS = 16
MOST_REASON_LENGTH = 64
"""What is kept of a provider's finish reasons for traces."""

GOOGLE_FIELDS = frozenset({"candidates", "promptFeedback", "usageMetadata"})
"""Fields of which each answer and each chunk of Google has one."""
_REQUIRED = {Format.CHAT: "choices", Format.RESPONSES: "output"}


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
    if isinstance(reason, str) and reason.strip() and not reason.endswith("_UNSPECIFIED"):
        return reason
    return None


class ChoiceEnds:
    """Which of the choices (or candidates) of a stream have ended."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[int, bool | None] = {}
        """Choices, and whether they have function calls; None for those that have ended."""

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
            elif self._open.setdefault(index, False) is False:
                delta = choice.get("delta")
                if isinstance(delta, dict) and delta.get("tool_calls"):
                    self._open[index] = True
        return reasons

    @property
    def are_all(self) -> bool:
        """Return whether there was a choice, and each one has ended."""
        return bool(self._open) and not self.list_open()

    def list_open(self) -> list[tuple[int, bool]]:
        """Return the choices that go on, and whether they have function calls."""
        return sorted((index, calls) for index, calls in self._open.items() if calls is not None)


def parse_answer(raw: bytes) -> dict[str, Any]:
    """The object in a provider's answer. InvalidAnswer if there is none; ReportedError."""
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
    required = _REQUIRED.get(upstream)
    if required and not isinstance(document.get(required), list):
        raise InvalidAnswer(f"The answer has no {required}.")
    for word in list_finish_reasons(document, upstream):
        check_reason(word)
    match upstream:
        case Format.CHAT:
            usage = fill_chat_usage(document)
            document["model"] = call.model_id
            for choice in as_objects(document["choices"]):
                message = as_object(choice.get("message"))
                if call.format is not Format.CHAT:
                    adopt_others(message)
                if measure_plain(message) is None:
                    regularize(message, CallPieces())
                reason = read_reason(choice.get("finish_reason"))
                if reason is None and message.get("tool_calls"):
                    reason = "tool_calls"
                choice["finish_reason"] = choose_reason(reason)
        case Format.RESPONSES:
            usage = fill_responses_usage(document)
            document["model"] = call.model_id
            if document.get("status") in ("failed", "cancelled"):
                raise ReportedError("The response failed.")
        case Format.GOOGLE:
            # a prompt that is blocked has no candidates
            if not isinstance(document.get("candidates", []), list) or GOOGLE_FIELDS.isdisjoint(
                document
            ):
                raise InvalidAnswer("The answer has no candidates.")
            usage = read_google_usage(document.get("usageMetadata"))
            if usage is not None:
                correct_google_usage(document["usageMetadata"], usage)
            document["modelVersion"] = call.model_id
    if usage is not None and usage.input and usage.output:
        return usage
    return complete_usage(call, usage, measure_answer(upstream, document))
