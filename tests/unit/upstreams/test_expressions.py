"""JMESPath expressions of provider resources."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.providers.templates import Expression, ExpressionError, prune_nulls

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a[", "JMESPath"),
        ("{a: }", "column 4"),
        ("foo(a)", "unknown function foo()"),
        ("{a: b.length()}", "length() takes 1 argument(s), not 0"),
        ("join(a)", "join() takes 2 argument(s), not 1"),
        ("not_null()", "not_null() takes 1 argument(s), not 0"),
        ("(" * 4000, ""),
    ],
)
def test_a_bad_expression_says_why(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    assert reason.lower() in str(caught.value).lower()
    assert str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "roots"),
    [
        ("{p: input.prompt, m: model}", {"input", "model"}),
        ("input.images[?size > `3`].url | [0]", {"input"}),
        ("input.images[].{u: url}", {"input"}),
        ("input.images[*].url", {"input"}),
        ("sort_by(input.images, &size)", {"input"}),
        ("@.input.x", set()),
        ("!a && b || c == d", {"a", "b", "c", "d"}),
        ("not_null(a, b, `1`)", {"a", "b"}),
    ],
)
def test_roots_are_what_an_expression_starts_from(text: str, roots: set[str]) -> None:
    assert Expression(text).roots == roots


def test_a_value_of_the_wrong_type_is_an_expression_error() -> None:
    with pytest.raises(ExpressionError):
        Expression("join(', ', a)").evaluate({"a": 5})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("multiply(a, `1000`)", 7500),
        ("divide(b, `1000`)", 0.004),
        ("divide(`5000`, `1000`)", 5),
        ("c && divide(c, `2`)", None),
    ],
)
def test_units_can_be_changed(text: str, value: object) -> None:
    result = Expression(text).evaluate({"a": 7.5, "b": 4})
    assert result == value
    assert isinstance(result, type(value))


@pytest.mark.parametrize("text", ["divide(a, `0`)", "multiply(b, a)", "multiply(a, c)"])
def test_what_cannot_be_computed_is_an_expression_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text).evaluate({"a": 1e308, "b": "5", "c": 1e308})


@given(JSON)
def test_no_document_breaks_an_evaluation(document: object) -> None:
    for text in ("a.b[].c", "a[?b > `1`].c | [0]", "*.a", "to_number(a)", "sort(a)", "keys(@)"):
        with contextlib.suppress(ExpressionError):
            Expression(text).evaluate(document)


@given(JSON)
def test_pruning_leaves_no_null_member_and_every_item(value: object) -> None:
    def check(before: object, after: object) -> None:
        if isinstance(before, dict):
            assert isinstance(after, dict)
            assert set(after) == {name for name, item in before.items() if item is not None}
            for name in after:
                check(before[name], after[name])
        elif isinstance(before, list):
            assert isinstance(after, list)
            assert len(before) == len(after)
            for pair in zip(before, after, strict=True):
                check(*pair)
        else:
            assert before == after

    check(value, prune_nulls(value))
