"""What a moderation asks: who takes which body, and what the refusal of another says."""

from typing import Any

import pytest

from gateway_core.api.errors import InvalidRequest
from gateway_core.providers.moderation import MOST_INPUTS, read_call

IMAGE = {"type": "image_url", "image_url": {"url": "HTTPS://example.com/a.png", "detail": "low"}}
TEXT = {"type": "text", "text": ""}


@pytest.mark.parametrize(
    ("given", "results", "kinds"),
    [
        ("a", 1, {"text"}),
        (" ", 1, {"text"}),
        (["a"], 1, {"text"}),
        (["a", ""], 2, {"text"}),
        ([TEXT], 1, {"text"}),
        ([IMAGE], 1, {"image"}),
        ([TEXT, IMAGE], 1, {"text", "image"}),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}], 1, {"image"}),
        (["a"] * MOST_INPUTS, MOST_INPUTS, {"text"}),
    ],
)
def test_input_has_so_many_results(given: Any, results: int, kinds: set[str]) -> None:
    call = read_call({"model": "m", "input": given, "user": 7})
    assert (call.results, call.kinds) == (results, kinds)
    assert call.to_upstream("up") == {"model": "up", "input": given}


def test_default_model_stands_in_for_none_and_for_null() -> None:
    for body in ({"input": "a"}, {"input": "a", "model": None}):
        assert read_call(body, default_model="usual").model_id == "usual"
    assert read_call({"input": "a", "model": "m"}, default_model="usual").model_id == "m"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": "a"}, "missing_required_parameter", "model"),
        ({"input": "a", "model": ""}, "invalid_value", "model"),
        ({"input": "a", "model": "m" * 254}, "invalid_value", "model"),
        ({"input": "a", "model": 0}, "invalid_type", "model"),
        ({"model": "m"}, "missing_required_parameter", "input"),
        ({"model": "m", "input": None}, "missing_required_parameter", "input"),
        ({"model": "m", "input": ""}, "invalid_value", "input"),
        ({"model": "m", "input": []}, "invalid_value", "input"),
        ({"model": "m", "input": 5}, "invalid_type", "input"),
        ({"model": "m", "input": {}}, "invalid_type", "input"),
        ({"model": "m", "input": ["a", 1]}, "invalid_type", "input"),
        ({"model": "m", "input": ["a", TEXT]}, "invalid_type", "input"),
        ({"model": "m", "input": [[1, 2]]}, "invalid_type", "input"),
        ({"model": "m", "input": ["a"] * (MOST_INPUTS + 1)}, "invalid_value", "input"),
        ({"model": "m", "input": [{"type": "audio"}]}, "invalid_value", "input"),
        ({"model": "m", "input": [{"text": "a"}]}, "invalid_value", "input"),
        ({"model": "m", "input": [{"type": "text"}]}, "invalid_value", "input"),
        ({"model": "m", "input": [{"type": "image_url"}]}, "invalid_value", "input"),
        (
            {"model": "m", "input": [{"type": "image_url", "image_url": "https://a"}]},
            "invalid_value",
            "input",
        ),
        (
            {"model": "m", "input": [{"type": "image_url", "image_url": {"url": "file:///a"}}]},
            "invalid_value",
            "input",
        ),
    ],
)
def test_refusal_names_its_field_also_within_a_line(
    body: dict[str, Any], code: str, param: str
) -> None:
    for within in ("", "body."):
        with pytest.raises(InvalidRequest) as caught:
            read_call(body, within=within)
        assert (caught.value.code, caught.value.param) == (code, within + param)
        assert caught.value.message.startswith(within + param)
