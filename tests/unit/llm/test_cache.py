"""Which answers of language models may be kept."""

from typing import Any

import orjson
import pytest

from gateway_core.accounts.guardrails import CacheScope
from gateway_core.llm.cache import find_place, is_worth_keeping
from gateway_core.llm.formats.calls import Format
from tests.fakes.llm_calls import MODEL, read

C, R, G = Format.CHAT, Format.RESPONSES, Format.GOOGLE
SCOPE = CacheScope("key", 60)


@pytest.mark.parametrize(
    ("format_", "changes", "is_kept"),
    [
        (C, {}, True),
        (C, {"tools": [{"type": "function", "function": {}}]}, True),
        (C, {"tools": [{"type": "web_search"}]}, False),
        (C, {"web_search_options": {}}, False),
        (C, {"enable_search": True}, False),
        (R, {"tools": [{"type": "custom"}, {"type": "local_shell"}]}, True),
        (R, {"tools": [{"type": "function"}, {"type": "mcp"}]}, False),
        (G, {"tools": [{"functionDeclarations": []}]}, True),
        (G, {"tools": [{"function_declarations": []}]}, True),
        (G, {"tools": [{"googleSearch": {}}]}, False),
    ],
)
def test_answer_of_a_call_that_costs_more_than_tokens_is_not_kept(
    format_: Format, changes: dict[str, Any], is_kept: bool
) -> None:
    place = find_place(read(format_, **changes), MODEL, SCOPE, account="acme", account_id=1)
    assert (place is not None) is is_kept


@pytest.mark.parametrize(
    ("format_", "answer", "is_worth"),
    [
        (Format.CHAT, {"choices": [{}]}, True),
        (Format.CHAT, {"choices": []}, False),
        (Format.RESPONSES, {"status": "completed"}, True),
        (Format.RESPONSES, {"status": "failed"}, False),
        (Format.RESPONSES, {"status": "incomplete"}, True),
        (Format.GOOGLE, {"candidates": [{}]}, True),
        (Format.GOOGLE, {"promptFeedback": {"blockReason": "SAFETY"}}, False),
    ],
)
def test_failure_with_status_200_is_not_kept(
    format_: Format, answer: dict[str, Any], is_worth: bool
) -> None:
    assert is_worth_keeping(format_, orjson.dumps(answer)) is is_worth
