"""Token usage as each format reports it, and the text of an answer where none is reported."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway_core.llm.formats.calls import (
    Format,
    LlmCall,
    TokenUsage,
    as_object,
    as_objects,
    estimate_tokens,
    read_count,
)

UNSEEN_AFTER_SECONDS = 2.0
UNSEEN_TOKENS_PER_SECOND = 20
"""What a provider is taken to write while its client sees nothing, as it reasons or the answer is
no stream: nothing for 2 s, while it reads, then less than hosted models write."""


def read_chat_usage(usage: Any) -> TokenUsage | None:
    """The `usage` of a chat completion; None if it counts no tokens, or absurd ones."""
    if not isinstance(usage, dict):
        return None
    prompt = read_count(usage.get("prompt_tokens"))
    completion = read_count(usage.get("completion_tokens"))
    if not prompt and not completion:
        # an empty one would make the call free
        return None
    if (not prompt and usage.get("prompt_tokens")) or (
        not completion and usage.get("completion_tokens")
    ):
        return None
    reasoning = cached = 0
    details = usage.get("completion_tokens_details")
    if details:
        reasoning = read_count(as_object(details).get("reasoning_tokens"))
        # some providers leave reasoning out of completion_tokens, but not out of the total
        if reasoning and read_count(usage.get("total_tokens")) == prompt + completion + reasoning:
            completion += reasoning
    details = usage.get("prompt_tokens_details")
    if details:
        cached = read_count(as_object(details).get("cached_tokens"))
    return TokenUsage(prompt, completion, min(cached, prompt), min(reasoning, completion))


def find_chat_usage(document: Mapping[str, Any]) -> TokenUsage | None:
    """The usage of a chat completion or chunk, wherever providers put it; None without one."""
    usage = read_chat_usage(document.get("usage"))
    if usage is not None:
        return usage
    holders = (as_object(document.get("x_groq")), *as_objects(document.get("choices")))
    return next(filter(None, (read_chat_usage(each.get("usage")) for each in holders)), None)


def read_responses_usage(usage: Any) -> TokenUsage | None:
    """The `usage` of a Responses object; None if it counts no tokens, or absurd ones."""
    if not _has_counts(usage, "input_tokens", "output_tokens"):
        return None
    given = read_count(usage.get("input_tokens"))
    output = read_count(usage.get("output_tokens"))
    cached = read_count(as_object(usage.get("input_tokens_details")).get("cached_tokens"))
    reasoning = read_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return TokenUsage(given, output, min(cached, given), min(reasoning, output))


def read_google_usage(usage: Any) -> TokenUsage | None:
    """A `usageMetadata`; None if it counts no tokens, or absurd ones."""
    if not _has_counts(usage, "promptTokenCount", "candidatesTokenCount"):
        return None
    prompt = read_count(usage.get("promptTokenCount"))
    prompt += read_count(usage.get("toolUsePromptTokenCount"))
    thoughts = read_count(usage.get("thoughtsTokenCount"))
    cached = read_count(usage.get("cachedContentTokenCount"))
    output = read_count(usage.get("candidatesTokenCount")) + thoughts
    return TokenUsage(prompt, output, min(cached, prompt), thoughts)


def _has_counts(usage: Any, *names: str) -> bool:
    """Whether a provider's usage counts anything: an empty one would make the call free.

    A count that cannot be one, such as a negative one, makes the others doubtful too.
    """
    if not isinstance(usage, dict):
        return False
    counts = [(value, read_count(value)) for value in map(usage.get, names)]
    return any(count for _, count in counts) and all(count or not value for value, count in counts)


def to_chat_usage(usage: TokenUsage) -> dict[str, Any]:
    """The `usage` of a chat completion."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def to_responses_usage(usage: TokenUsage) -> dict[str, Any]:
    """The `usage` of a Responses object."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def to_google_usage(usage: TokenUsage) -> dict[str, Any]:
    """A `usageMetadata`."""
    metadata = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        metadata["thoughtsTokenCount"] = usage.reasoning
    if usage.cached:
        metadata["cachedContentTokenCount"] = usage.cached
    return metadata


def fill_responses_usage(response: dict[str, Any]) -> None:
    """Add the detail counters that the SDK requires to the usage of a Responses object (§7.3)."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return
    for name, counters in (
        ("input_tokens_details", ("cached_tokens", "cache_write_tokens")),
        ("output_tokens_details", ("reasoning_tokens",)),
    ):
        details = usage[name] = as_object(usage.get(name))
        for counter in counters:
            if details.get(counter) is None:
                details[counter] = 0


def hide_failure(response: dict[str, Any]) -> None:
    """Replace a provider's own words in the error of a Responses object (contract §1.3)."""
    error = response.get("error")
    if isinstance(error, dict) and error.get("message") is not None:
        error["message"] = "The model's provider failed on this call."


def estimate_usage(call: LlmCall, text_bytes: int, unseen_seconds: float = 0.0) -> TokenUsage:
    """Usage of a call whose provider reported none, or whose stream broke off.

    `text_bytes` is the length of the output seen. `unseen_seconds` is how long the provider has
    worked for a client that left, before the first output that could be seen.
    """
    output = estimate_tokens(text_bytes)
    output += int(max(0.0, unseen_seconds - UNSEEN_AFTER_SECONDS) * UNSEEN_TOKENS_PER_SECOND)
    if call.max_output is not None:
        output = min(output, call.max_output * call.choices)
    return TokenUsage(call.input_estimate, output, estimated=True)


def measure_answer(format_: Format, document: dict[str, Any]) -> int:
    """Bytes of the output in an answer that is no stream."""
    match format_:
        case Format.CHAT:
            return sum(
                measure_delta(choice.get("message"))
                for choice in as_objects(document.get("choices"))
            )
        case Format.RESPONSES:
            return sum(
                measure_texts(item, ("arguments", "input"))
                + sum(
                    measure_texts(part, ("text", "refusal"))
                    for key in ("content", "summary")
                    for part in as_objects(item.get(key))
                )
                for item in as_objects(document.get("output"))
            )
        case Format.GOOGLE:
            return measure_candidates(document)


def measure_delta(delta: Any) -> int:
    """Bytes of the output in a chat message, or in a delta of one."""
    if not isinstance(delta, dict):
        return 0
    size = measure_texts(delta, ("content", "refusal", "reasoning_content", "reasoning"))
    for call in as_objects(delta.get("tool_calls")):
        size += measure_texts(as_object(call.get("function")), ("name", "arguments"))
    return size


def measure_candidates(document: dict[str, Any]) -> int:
    """Bytes of the output in a generateContent answer, or in a chunk of one."""
    size = 0
    for candidate in as_objects(document.get("candidates")):
        for part in as_objects(as_object(candidate.get("content")).get("parts")):
            size += measure_texts(part, ("text",))
            if "functionCall" in part:
                size += _measure_call(part["functionCall"])
    return size


def _measure_call(call: Any) -> int:
    try:
        return len(orjson.dumps(call))
    except orjson.JSONEncodeError:
        # nested too deeply
        return 0


def measure_texts(holder: dict[str, Any], names: tuple[str, ...]) -> int:
    """Bytes of the strings that `holder` has under `names`."""
    size = 0
    for name in names:
        value = holder.get(name)
        if isinstance(value, str):
            size += len(value.encode())
    return size
