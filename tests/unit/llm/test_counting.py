"""Meaning of the token counts that providers report, in every format."""

from typing import Any

import pytest

from gateway_core.llm.formats.answers import complete_answer
from gateway_core.llm.formats.calls import Format, LlmCall, TokenUsage
from gateway_core.llm.formats.counting import ReportedCounts, interpret_counts
from gateway_core.llm.formats.estimates import complete_usage, join_usages
from gateway_core.llm.formats.usage import (
    adds_up,
    correct_google_usage,
    fill_chat_usage,
    fill_google_usage,
    fill_responses_usage,
    read_chat_usage,
    read_google_usage,
)
from tests.fakes.llm_calls import read

# input, output, total, reasoning, cached, written; and the sums, with * where they are an estimate
CASES = {
    "all counts agree": ((9, 664, 673, 0, 0, 0), "9 664"),
    "no total": ((9, 664, 0, 0, 0, 0), "9 664"),
    "reasoning only in the total": ((9, 664, 1994, 0, 0, 0), "9 1985"),
    "part of the reasoning only in the total": ((9, 664, 1994, 600, 0, 0), "9 1985"),
    "hidden reasoning beside cached input": ((100, 10, 500, 0, 60, 0), "100 400"),
    "reasoning beside the output": ((10, 5, 45, 30, 0, 0), "10 35"),
    "reasoning within the output": ((10, 35, 45, 30, 0, 0), "10 35"),
    "more reasoning than output": ((10, 5, 0, 30, 0, 0), "10 35*"),
    "more reasoning than output and a total without it": ((10, 5, 15, 30, 0, 0), "10 35*"),
    "cached within the input": ((5500, 10, 5510, 0, 5450, 0), "5500 10"),
    "cached beside the input": ((50, 10, 5510, 0, 5450, 0), "5500 10"),
    "smaller cached part beside the input": ((5450, 10, 5510, 0, 50, 0), "5500 10"),
    "more cached than input": ((50, 10, 0, 0, 5450, 0), "5500 10*"),
    "more cached than input and a total without it": ((50, 10, 60, 0, 5450, 0), "5500 10*"),
    "more cached than input and another total": ((50, 10, 5600, 0, 5450, 0), "5500 100*"),
    "cached and reasoning beside": ((50, 10, 5540, 30, 5450, 0), "5500 40"),
    "written beside the input": ((50, 10, 460, 0, 0, 400), "450 10"),
    "written and cached beside the input": ((50, 10, 760, 0, 300, 400), "750 10"),
    "written beside and cached within the input": ((350, 10, 760, 0, 300, 400), "750 10"),
    "written beside the input and no total": ((350, 10, 0, 0, 300, 400), "750 10*"),
    "written within the input": ((450, 10, 460, 0, 0, 400), "450 10"),
    "all input cached": ((0, 10, 5460, 0, 5450, 0), "5450 10"),
    "total instead of input": ((0, 10, 110, 0, 0, 0), "100 10"),
    "total instead of output": ((100, 0, 110, 0, 0, 0), "100 10"),
    "total below the sum": ((100, 10, 20, 0, 0, 0), "100 10"),
}


def describe(usage: TokenUsage | None) -> str:
    assert usage is not None
    return f"{usage.input} {usage.output}{'*' if usage.estimated else ''}"


def write_openai(
    counts: tuple[int, ...], given: str, made: str, given_details: str, made_details: str
) -> dict[str, Any]:
    return {
        given: counts[0],
        made: counts[1],
        "total_tokens": counts[2],
        made_details: {"reasoning_tokens": counts[3]},
        given_details: {"cached_tokens": counts[4], "cache_write_tokens": counts[5]},
    }


CHAT = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
RESPONSES = ("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")


@pytest.mark.parametrize(("counts", "meaning"), CASES.values(), ids=CASES)
def test_openai_formats_read_counts_alike_and_show_what_is_charged(
    counts: tuple[int, ...], meaning: str
) -> None:
    chat, responses = write_openai(counts, *CHAT), write_openai(counts, *RESPONSES)
    usage = read_chat_usage(chat)
    assert describe(usage) == meaning
    assert usage is not None
    assert fill_responses_usage({"usage": responses}) == usage
    assert fill_chat_usage({"usage": chat}) == usage
    assert (chat["prompt_tokens"], chat["completion_tokens"]) == (usage.input, usage.output)
    assert (responses["input_tokens"], responses["output_tokens"]) == (usage.input, usage.output)
    assert chat["total_tokens"] == responses["total_tokens"] == usage.input + usage.output
    assert usage.cached + usage.written <= usage.input
    assert usage.reasoning <= usage.output


@pytest.mark.parametrize(
    ("counts", "meaning"),
    [
        # prompt, candidates, thoughts, total, tools' prompts, cached
        ((9, 5, 30, 44, 0, 0), "9 35"),
        ((9, 5, 30, 0, 0, 0), "9 35"),
        # some providers count thoughts among the candidates
        ((9, 35, 30, 44, 0, 0), "9 35"),
        ((9, 5, 30, 14, 0, 0), "9 35"),
        ((9, 0, 30, 39, 0, 0), "9 30"),
        ((9, 664, 0, 1994, 0, 0), "9 1985"),
        ((9, 664, 100, 1994, 0, 0), "9 1985"),
        ((9, 5, 0, 34, 20, 0), "29 5"),
        ((50, 10, 0, 5510, 0, 5450), "5500 10"),
        ((50, 10, 0, 0, 0, 5450), "5500 10*"),
        ((9, 0, 0, 9, 0, 0), "9 0"),
    ],
)
def test_google_counts_are_read_and_add_up(counts: tuple[int, ...], meaning: str) -> None:
    names = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "totalTokenCount")
    names += ("toolUsePromptTokenCount", "cachedContentTokenCount")
    shown = {name: count for name, count in zip(names, counts, strict=True) if count}
    usage = read_google_usage(shown)
    assert describe(usage) == meaning
    assert usage is not None
    correct_google_usage(shown, usage)
    assert adds_up(shown)
    assert describe(read_google_usage(shown)) == meaning.rstrip("*")


@pytest.mark.parametrize(
    ("shown", "is_correct"),
    [
        (None, True),
        ({"promptTokenCount": 9, "totalTokenCount": 9}, True),
        ({"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 20}, False),
        ({"promptTokenCount": 9, "cachedContentTokenCount": 10}, False),
        ({"promptTokenCount": "9", "totalTokenCount": 9}, False),
    ],
)
def test_chunk_whose_counts_do_not_add_up_is_recognised(shown: Any, is_correct: bool) -> None:
    assert adds_up(shown) is is_correct


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cached_tokens": 40}},
        {"prompt_cache_hit_tokens": 40, "prompt_cache_miss_tokens": 60},
        {"cache_read_input_tokens": 40},
        {"cached_tokens": 40, "prompt_tokens_details": None},
    ],
)
def test_cached_tokens_are_found_under_the_names_of_providers(usage: dict[str, Any]) -> None:
    usage |= {"prompt_tokens": 100, "completion_tokens": 1}
    assert read_chat_usage(usage) == TokenUsage(100, 1, cached=40)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cache_write_tokens": 40}},
        {"prompt_tokens_details": {"cache_creation_tokens": 40}},
        {"cache_creation_input_tokens": 40},
    ],
)
def test_cache_writes_are_found_under_the_names_of_providers(usage: dict[str, Any]) -> None:
    usage |= {
        "prompt_tokens": 100,
        "completion_tokens": 1,
        "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 10},
    }
    assert read_chat_usage(usage) == TokenUsage(100, 1, written=40, written_hour=10)


def test_kinds_of_tokens_are_read() -> None:
    usage = {
        "prompt_tokens": 1010,
        "completion_tokens": 50,
        "prompt_tokens_details": {
            "audio_tokens": 1000,
            "cached_tokens": 305,
            "cached_tokens_details": {"audio_tokens": 300, "text_tokens": 5},
        },
        "completion_tokens_details": {"audio_tokens": 30, "image_tokens": 20},
    }
    expected = TokenUsage(
        1010, 50, cached=305, cached_audio=300, audio=700, output_audio=30, output_image=20
    )
    assert read_chat_usage(usage) == expected


def test_modalities_of_google_are_read() -> None:
    usage = {
        "promptTokenCount": 1310,
        "cachedContentTokenCount": 300,
        "candidatesTokenCount": 1290,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 10},
            {"modality": "AUDIO", "tokenCount": 1000},
            {"modality": "IMAGE", "tokenCount": 300},
        ],
        "cacheTokensDetails": [
            {"modality": "AUDIO", "tokenCount": 200},
            {"modality": "IMAGE", "tokenCount": 100},
        ],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
        "totalTokenCount": 2600,
    }
    expected = TokenUsage(
        1310, 1290, cached=300, cached_audio=200, audio=800, image=200, output_image=1290
    )
    assert read_google_usage(usage) == expected


def test_parts_never_exceed_their_whole() -> None:
    counts = ReportedCounts(
        100, 10, 110, reasoning=99, cached=60, written=30, audio=500, image=500, output_audio=50
    )
    usage = interpret_counts(counts)
    assert usage is not None
    assert usage.cached + usage.written + usage.audio + usage.image <= usage.input
    assert max(usage.reasoning, usage.output_audio + usage.output_image) <= usage.output


@pytest.mark.parametrize(
    ("reported", "text_bytes", "expected"),
    [
        (TokenUsage(9, 4), 400, TokenUsage(9, 4)),
        (TokenUsage(9, 0), 0, TokenUsage(9, 0)),
        (TokenUsage(9, 0), 400, TokenUsage(9, 100, estimated=True)),
        (TokenUsage(0, 4), 400, TokenUsage(77, 4, estimated=True)),
        (None, 400, TokenUsage(77, 100, estimated=True)),
    ],
)
def test_missing_count_is_estimated_and_marked(
    reported: TokenUsage | None, text_bytes: int, expected: TokenUsage
) -> None:
    call = LlmCall(Format.CHAT, "m", stream=False, body={}, input_bound=99, input_estimate=77)
    assert complete_usage(call, reported, text_bytes) == expected


JUNK = (-1, 1.5, "7", [7], {"n": 7}, 2**53)


def write_answer(format_: Format, usage: dict[str, Any]) -> dict[str, Any]:
    match format_:
        case Format.CHAT:
            message = {"role": "assistant", "content": "Hello"}
            return {
                "id": "c1",
                "object": "chat.completion",
                "created": 1,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
            }
        case Format.RESPONSES:
            return {"output": [], "usage": usage}
        case Format.GOOGLE:
            parts = [{"text": "Hello"}]
            return {"candidates": [{"content": {"parts": parts}}], "usageMetadata": usage}


def list_counts(usage: Any) -> list[Any]:
    """The values of all counters in a usage."""
    if not isinstance(usage, dict):
        return []
    counts = []
    for name, value in usage.items():
        if isinstance(value, dict):
            counts += list_counts(value)
        elif name.lower().endswith(("tokens", "tokencount")):
            counts.append(value)
    return counts


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("format_", Format)
def test_client_sees_the_charge_instead_of_impossible_counts(
    format_: Format, place: int, junk: Any
) -> None:
    counts: list[Any] = [10, 5, 15, 2, 3]
    counts[place] = junk
    if format_ is Format.GOOGLE:
        names = ("promptTokenCount", "candidatesTokenCount", "totalTokenCount")
        names += ("thoughtsTokenCount", "cachedContentTokenCount")
        shown = dict(zip(names, counts, strict=True))
    else:
        names = CHAT if format_ is Format.CHAT else RESPONSES
        shown = write_openai((*counts, 0), *names)
    answer = write_answer(format_, shown)
    usage = complete_answer(read(format_), answer, format_)
    found = answer["usageMetadata" if format_ is Format.GOOGLE else "usage"]
    assert all(type(count) is int and 0 <= count < 100 for count in list_counts(found))
    read_usage = read_google_usage if format_ is Format.GOOGLE else read_chat_usage
    if format_ is not Format.RESPONSES:
        assert describe(read_usage(found)) == f"{usage.input} {usage.output}"
    assert usage.estimated == (place < 2)


@pytest.mark.parametrize("junk", JUNK)
def test_streams_show_no_usage_that_means_nothing(junk: Any) -> None:
    chunk = {"usageMetadata": {"promptTokenCount": junk, "totalTokenCount": junk}}
    assert fill_google_usage(chunk) is None
    assert chunk == {}
    for name, fill in (("prompt_tokens", fill_chat_usage), ("input_tokens", fill_responses_usage)):
        document: dict[str, Any] = {"usage": {name: junk, "total_tokens": junk}}
        assert fill(document) is None
        assert not document.get("usage")


def test_prompt_that_was_counted_first_belongs_to_the_output_that_is_counted_last() -> None:
    prompt, output = TokenUsage(100, 0, cached=60), TokenUsage(0, 50, reasoning=20)
    joined = TokenUsage(100, 50, cached=60, reasoning=20)
    assert join_usages(prompt, output) == joined
    assert join_usages(joined, prompt) is prompt
    assert join_usages(None, output) is output
