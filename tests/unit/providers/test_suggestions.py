"""The names that an error offers are near ones, few, and found fast."""

import time

import pytest

from gateway_core.providers.suggestions import MOST_COMPARED, find_nearest, suggest

NAMES = ["gpt-4o", "gpt-4o-mini", "gpt-4.1", "claude-sonnet-4", "sim-q4-reference-to-video", "m"]


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("gpt4o", "gpt-4o"),
        ("GPT-4O", "gpt-4o"),
        ("openai/gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gtp-4o-mini", "gpt-4o-mini"),
        ("gpt_4.1", "gpt-4.1"),
        ("claude-sonet-4", "claude-sonnet-4"),
        ("sim-q4-reference-to-vidoe", "sim-q4-reference-to-video"),
        ("sim-reference-to-video", "sim-q4-reference-to-video"),
        ("M", "m"),
    ],
)
def test_slip_is_found(wanted: str, nearest: str) -> None:
    assert find_nearest(wanted, NAMES)[0] == nearest


@pytest.mark.parametrize("wanted", ["", "zz", "llama-3-70b", "x" * 201, "\ud83d"])
def test_name_that_is_like_none_has_no_neighbour(wanted: str) -> None:
    assert find_nearest(wanted, NAMES) == []


def test_at_most_three_are_named_the_nearest_first() -> None:
    names = [f"model-{number}" for number in range(9)]
    assert find_nearest("model-5", names) == ["model-5", "model-0", "model-1"]
    assert suggest(["a", "b", "c"]) == " Did you mean a, b or c?"
    assert suggest(["a"]) == " Did you mean a?"
    assert suggest([]) == ""


def test_long_catalog_is_compared_in_part() -> None:
    names = [f"{number:06}-{'ab' * 120}" for number in range(50 * MOST_COMPARED)]
    began = time.process_time()
    find_nearest("ab" * 100, names)
    assert time.process_time() - began < 1
