"""Token usage as each format reports and shows it."""

from typing import Any

from gateway_core.llm.formats.calls import (
    MOST_TOKENS,
    TokenUsage,
    as_object,
    as_objects,
    read_count,
)
from gateway_core.llm.formats.counting import ReportedCounts, interpret_counts
from gateway_core.llm.formats.usage_names import (
    CACHED,
    CHAT,
    COUNTERS,
    OTHERS,
    PARTS,
    RESPONSES,
    WRITTEN,
    WRITTEN_HOUR,
    WRITTEN_PARTS,
    UsageNames,
)

_TEXT = frozenset({"TEXT"})


def read_chat_usage(usage: Any) -> TokenUsage | None:
    """Return the usage that the `usage` of a chat completion means.

    None if it counts no tokens, or absurd ones.
    """
    return _read_openai(usage, CHAT)


def fill_chat_usage(document: dict[str, Any]) -> TokenUsage | None:
    """Return the usage of a chat completion or chunk, wherever providers put it.

    None without one. The document's own `usage` is made to show the sums that are charged.
    """
    shown: Any = document.get("usage")
    if shown:
        usage = read_chat_usage(shown)
        if usage is not None:
            _correct_openai(shown, usage, CHAT)
            return usage
        # clients would read what is charged otherwise
        del document["usage"]
    for holder in (document.get("x_groq"), *as_objects(document.get("choices"))):
        # nearly no chunk has one
        if isinstance(holder, dict) and "usage" in holder:
            usage = read_chat_usage(holder["usage"])
            if usage is not None:
                document["usage"] = to_chat_usage(usage)
                return usage
    if not shown and "choices" in document:
        return None
    # in the names of Responses, or alone in a frame
    usage = _read_openai(shown, RESPONSES) or read_chat_usage(document)
    if usage is not None:
        document["usage"] = to_chat_usage(usage)
    return usage


def _read_openai(usage: Any, names: UsageNames) -> TokenUsage | None:
    if not isinstance(usage, dict):
        return None
    given = as_object(usage.get(names.input_details))
    made = as_object(usage.get(names.output_details))
    has_others = (
        not PARTS.isdisjoint(usage)
        or (given and any(map(given.get, OTHERS)))
        or (made and any(map(made.get, OTHERS)))
    )
    plain = (
        None
        if has_others
        else _read_plain(
            usage.get(names.input),
            usage.get(names.output),
            usage.get("total_tokens"),
            given.get("cached_tokens", 0),
            made.get("reasoning_tokens", 0),
        )
    )
    if plain is not None:
        return plain
    if not _has_counts(usage, names.input, names.output):
        return None
    cached = as_object(given.get("cached_tokens_details"))
    written = _find_count(WRITTEN, given, usage)
    return interpret_counts(
        ReportedCounts(
            read_count(usage.get(names.input)),
            read_count(usage.get(names.output)),
            read_count(usage.get("total_tokens")),
            reasoning=_find_count(("reasoning_tokens",), made, usage),
            cached=_find_count(CACHED, given, usage),
            cached_audio=read_count(cached.get("audio_tokens")),
            cached_image=read_count(cached.get("image_tokens")),
            written=written,
            written_hour=_find_written_hour(given, usage) if written else 0,
            audio=read_count(given.get("audio_tokens")),
            image=read_count(given.get("image_tokens")),
            output_audio=read_count(made.get("audio_tokens")),
            output_image=read_count(made.get("image_tokens")),
        )
    )


def _read_plain(
    given: Any, made: Any, total: Any, cached: Any, reasoning: Any, *, is_apart: bool = False
) -> TokenUsage | None:
    """Return the usage of counts that leave nothing to decide, as most are; else None.

    Input and output add up to the total. The full rule gives the same, more slowly. `is_apart`:
    reasoning is no part of what was made.
    """
    for count in (given, made, cached, reasoning):
        if type(count) is not int or count < 0:
            return None
    has_any = given or made
    if is_apart:
        made += reasoning
    is_sum = has_any and given + made == total <= MOST_TOKENS
    if not is_sum or cached > given or reasoning > made:
        return None
    return TokenUsage(given, made, cached=cached, reasoning=reasoning)


def read_google_usage(usage: Any) -> TokenUsage | None:
    """Return the usage that a `usageMetadata` means, or None as for chat."""
    if not isinstance(usage, dict):
        return None
    given = _read_modalities(usage, "promptTokensDetails", "toolUsePromptTokensDetails")
    cached = _read_modalities(usage, "cacheTokensDetails")
    made = _read_modalities(usage, "candidatesTokensDetails", "responseTokensDetails")
    has_others = "toolUsePromptTokenCount" in usage or not (
        _TEXT.issuperset(given) and _TEXT.issuperset(cached) and _TEXT.issuperset(made)
    )
    plain = (
        None
        if has_others
        else _read_plain(
            usage.get("promptTokenCount"),
            usage.get("candidatesTokenCount"),
            usage.get("totalTokenCount"),
            usage.get("cachedContentTokenCount", 0),
            usage.get("thoughtsTokenCount", 0),
            is_apart=True,
        )
    )
    if plain is not None:
        return plain
    if not _has_counts(usage, "promptTokenCount", "candidatesTokenCount"):
        return None
    return interpret_counts(
        ReportedCounts(
            read_count(usage.get("promptTokenCount"))
            + read_count(usage.get("toolUsePromptTokenCount")),
            read_count(usage.get("candidatesTokenCount")),
            read_count(usage.get("totalTokenCount")),
            reasoning=read_count(usage.get("thoughtsTokenCount")),
            cached=read_count(usage.get("cachedContentTokenCount")),
            cached_audio=cached.get("AUDIO", 0),
            cached_image=cached.get("IMAGE", 0),
            audio=given.get("AUDIO", 0),
            image=given.get("IMAGE", 0),
            output_audio=made.get("AUDIO", 0),
            output_image=made.get("IMAGE", 0),
            is_reasoning_apart=True,
        )
    )


def _find_count(names: tuple[str, ...], *holders: dict[str, Any]) -> int:
    """Return the first count that a holder has under one of the names; 0 without any."""
    for holder in holders:
        for name in names:
            # most names are in no usage
            if name in holder and (count := read_count(holder[name])):
                return count
    return 0


def _find_written_hour(*holders: dict[str, Any]) -> int:
    parts = [as_object(each.get(name)) for each in holders for name in WRITTEN_PARTS]
    return _find_count(WRITTEN_HOUR, *holders, *parts)


def _read_modalities(usage: dict[str, Any], *names: str) -> dict[str, int]:
    """Return the tokens by modality in Google's details under `names`."""
    counts: dict[str, int] = {}
    for name in names:
        for each in as_objects(usage[name]) if name in usage else ():
            modality = str(each.get("modality"))
            counts[modality] = counts.get(modality, 0) + read_count(each.get("tokenCount"))
    return counts


def _has_counts(usage: dict[str, Any], *names: str) -> bool:
    """Return whether a provider's usage counts anything: an empty one would make the call free.

    A count that cannot be one, such as a negative one, makes the others doubtful too.
    """
    has_any = False
    for name in names:
        value = usage.get(name)
        if value:
            if not read_count(value):
                return False
            has_any = True
    return has_any


def to_chat_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the `usage` of a chat completion."""
    return _write_openai(usage, CHAT, written=None)


def to_responses_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the `usage` of a Responses object, with the counters that the SDK requires."""
    return _write_openai(usage, RESPONSES, written=0)


def _write_openai(usage: TokenUsage, names: UsageNames, *, written: int | None) -> dict[str, Any]:
    """Return a usage; kinds of tokens of which there are none have no counter but `written`."""
    given = {
        "cached_tokens": usage.cached,
        "cache_write_tokens": usage.written or written,
        "cache_write_1h_tokens": usage.written_hour or None,
        "audio_tokens": usage.audio + usage.cached_audio or None,
        "image_tokens": usage.image or None,
        "cached_tokens_details": {"audio_tokens": usage.cached_audio}
        if usage.cached_audio
        else None,
    }
    made = {
        "reasoning_tokens": usage.reasoning,
        "audio_tokens": usage.output_audio or None,
        "image_tokens": usage.output_image or None,
    }
    return {
        names.input: usage.input,
        names.output: usage.output,
        "total_tokens": usage.input + usage.output,
        names.input_details: {key: value for key, value in given.items() if value is not None},
        names.output_details: {key: value for key, value in made.items() if value is not None},
    }


def to_google_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return a `usageMetadata`."""
    metadata: dict[str, Any] = {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - usage.reasoning,
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        metadata["thoughtsTokenCount"] = usage.reasoning
    if usage.cached:
        metadata["cachedContentTokenCount"] = usage.cached
    audio = usage.audio + usage.cached_audio
    for name, total, parts in (
        ("promptTokensDetails", usage.input, {"AUDIO": audio, "IMAGE": usage.image}),
        ("cacheTokensDetails", usage.cached, {"AUDIO": usage.cached_audio}),
        (
            "candidatesTokensDetails",
            usage.output - usage.reasoning,
            {"AUDIO": usage.output_audio, "IMAGE": usage.output_image},
        ),
    ):
        if any(parts.values()):
            modalities = {"TEXT": max(0, total - sum(parts.values())), **parts}
            metadata[name] = [
                {"modality": modality, "tokenCount": count}
                for modality, count in modalities.items()
                if count
            ]
    return metadata


def _correct_openai(shown: dict[str, Any], usage: TokenUsage, names: UsageNames) -> None:
    _mend_counts(shown)
    shown[names.input], shown[names.output] = usage.input, usage.output
    shown["total_tokens"] = usage.input + usage.output
    for name, counter, count in (
        (names.input_details, "cached_tokens", usage.cached),
        (names.output_details, "reasoning_tokens", usage.reasoning),
    ):
        details = shown.get(name)
        if count:
            shown[name] = {**as_object(details), counter: count}
        elif details is not None and not isinstance(details, dict):
            shown[name] = None


def _mend_counts(holder: dict[str, Any], depth: int = 3) -> None:
    """Make counters that cannot be counts 0, in place, to the level of the details' details."""
    for name, value in holder.items():
        if value is not None and name.endswith(COUNTERS):
            holder[name] = read_count(value)
        elif depth > 1 and isinstance(value, dict | list):
            for each in [value] if isinstance(value, dict) else as_objects(value):
                _mend_counts(each, depth - 1)


def adds_up(shown: Any) -> bool:
    """Return whether the sums in a `usageMetadata` need no correction."""
    if not isinstance(shown, dict):
        return True
    try:
        prompt = shown["promptTokenCount"]
        tools = shown.get("toolUsePromptTokenCount") or 0
        candidates = shown.get("candidatesTokenCount") or 0
        thoughts = shown.get("thoughtsTokenCount") or 0
        cached = shown.get("cachedContentTokenCount") or 0
        parts = prompt + tools + candidates + thoughts
        return bool(
            shown.get("totalTokenCount", parts) == parts
            and cached <= prompt
            and type(parts) is int
            and parts <= MOST_TOKENS
            and min(tools, candidates, thoughts, cached) >= 0
        )
    except (KeyError, TypeError):
        return False


def fill_google_usage(document: dict[str, Any]) -> TokenUsage | None:
    """Return the usage of an answer or chunk of Google, and correct its own, as for chat."""
    shown = document.get("usageMetadata")
    usage = read_google_usage(shown)
    if usage is not None:
        correct_google_usage(document["usageMetadata"], usage)
    elif not adds_up(shown):
        del document["usageMetadata"]
    return usage


def correct_google_usage(shown: dict[str, Any], usage: TokenUsage) -> None:
    """Make the sums in a `usageMetadata` those that are charged."""
    _mend_counts(shown)
    prompt = usage.input - read_count(shown.get("toolUsePromptTokenCount"))
    candidates = usage.output - usage.reasoning
    if prompt or shown.get("promptTokenCount"):
        shown["promptTokenCount"] = prompt
    if candidates or shown.get("candidatesTokenCount"):
        shown["candidatesTokenCount"] = candidates
    parts = {"thoughtsTokenCount": usage.reasoning, "cachedContentTokenCount": usage.cached}
    shown.update({name: count for name, count in parts.items() if count or name in shown})
    if "totalTokenCount" in shown:
        shown["totalTokenCount"] = usage.input + usage.output


def fill_responses_usage(response: dict[str, Any]) -> TokenUsage | None:
    """Return the usage that a Responses object means, and correct the object's own in place.

    None as for chat. Missing detail counters, which the SDK requires, become 0 (§7.3), and the sums
    those that are charged.
    """
    shown = response.get("usage")
    if not isinstance(shown, dict):
        return None
    usage = _read_openai(shown, RESPONSES)
    if usage is None:
        response["usage"] = None
        return None
    for name, counters in (
        ("input_tokens_details", ("cached_tokens", "cache_write_tokens")),
        ("output_tokens_details", ("reasoning_tokens",)),
    ):
        details = shown[name] = as_object(shown.get(name))
        for counter in counters:
            if details.get(counter) is None:
                details[counter] = 0
    _correct_openai(shown, usage, RESPONSES)
    return usage
