"""Nesting of LLM bodies: a body that passes can be encoded with the levels of translations."""

from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.llm.shallow import MOST_LEVELS, SPARE_LEVELS, read_shallow
from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import LlmCall
from gateway_core.llm.formats.requests import read_chat


def nest(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def read(levels: int, text: str = "hello") -> LlmCall:
    messages = [{"role": "user", "content": text}]
    # the body itself is a level
    body = {"model": "m", "messages": messages, "metadata": nest(levels - 1)}
    return read_shallow(read_chat, body, 0)[0]


@pytest.mark.parametrize("text", ["hello", "[" * 300], ids=["few brackets", "many brackets"])
def test_body_of_most_levels_passes_and_can_be_encoded_with_those_of_translations(
    text: str,
) -> None:
    call = read(MOST_LEVELS, text)

    assert orjson.dumps(nest(SPARE_LEVELS, call.body))


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, MOST_LEVELS + SPARE_LEVELS + 1])
def test_body_of_more_levels_is_refused(levels: int) -> None:
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        read(levels)
