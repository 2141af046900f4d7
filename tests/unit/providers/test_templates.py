"""Templates of paths and headers, and JMESPath expressions of provider resources."""

import contextlib
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.providers.templates import (
    Expression,
    ExpressionError,
    PathTemplate,
    TemplateError,
    fill_header,
    find_header_problem,
    prune_nulls,
)

TEXT = st.text(st.characters(), min_size=1, max_size=40)


@given(TEXT)
def test_value_never_leaves_its_segment(value: str) -> None:
    try:
        path = PathTemplate("/v1/jobs/{jobId}/cancel", {"jobId"}).fill({"jobId": value})
    except TemplateError:
        assert value in (".", "..") or any("\ud800" <= c <= "\udfff" for c in value)
        return
    head, middle, tail = path.split("/v1/jobs/")[1:][0].partition("/cancel")
    assert (middle, tail) == ("/cancel", "")
    assert "/" not in head
    assert unquote(head) == value
    parts = urlsplit("http://host" + path)
    assert (parts.netloc, parts.query, parts.fragment) == ("host", "", "")
    assert path.isascii()
    assert path.isprintable()
    assert " " not in path


@given(TEXT)
def test_value_never_leaves_its_query_parameter(value: str) -> None:
    try:
        path = PathTemplate("/jobs?a={reference}&b=1", {"reference"}).fill({"reference": value})
    except TemplateError:
        assert any("\ud800" <= c <= "\udfff" for c in value)
        return
    query = urlsplit("http://host" + path).query
    assert query.count("&") == 1
    assert query.endswith("&b=1")
    assert unquote(query[2:-4]) == value


@given(TEXT)
def test_value_with_slashes_stays_below_its_place(value: str) -> None:
    try:
        path = PathTemplate("/v1/{+jobId}", {"jobId"}).fill({"jobId": value})
    except TemplateError:
        bad = {"", ".", ".."} & set(value.split("/"))
        assert bad or any("\ud800" <= c <= "\udfff" for c in value)
        return
    assert path.startswith("/v1/")
    assert not {"", ".", ".."} & set(path[4:].split("/"))
    assert unquote(path[4:]) == value
    assert urlsplit("http://host" + path).query == ""


@pytest.mark.parametrize(
    ("template", "value"), [("/{a}", ""), ("/{a}", ".."), ("/.{a}", "."), ("/{+a}", "x/../y")]
)
def test_value_that_would_walk_is_refused(template: str, value: str) -> None:
    with pytest.raises(TemplateError):
        PathTemplate(template, {"a"}).fill({"a": value})


@pytest.mark.parametrize(
    "text",
    ["/{b}", "/a b", "/a\r\nHost: x", "/{a", "/a}", "/{}", "/a#b", "/../{a}", "/%zz", "/ä", '/"'],
)
def test_bad_path_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        PathTemplate(text, {"a"})


def test_unknown_place_names_those_there_are() -> None:
    with pytest.raises(TemplateError, match=r"unknown placeholder \{id\}; there is \{jobId\}"):
        PathTemplate("/jobs/{id}", {"jobId"})


def test_header_takes_the_credential() -> None:
    assert fill_header("Bearer {credential}", "k") == "Bearer k"
    assert fill_header("plain {x}", None) == "plain {x}"


@pytest.mark.parametrize("credential", [None, "", "a\r\nX: y", "a\nb", "a\x00b"])
def test_credential_that_cannot_stand_in_a_header_is_refused(credential: str | None) -> None:
    with pytest.raises(TemplateError):
        fill_header("Bearer {credential}", credential)


@pytest.mark.parametrize(
    ("value", "with_credential", "good"),
    [
        ("Bearer {credential}", True, True),
        ("Bearer {credential}", False, False),
        ("{token}", True, False),
        ("a\r\nX-Other: b", True, False),
        ('{"a": 1}', True, True),
        ("", False, True),
    ],
)
def test_header_values_are_checked(value: str, with_credential: bool, good: bool) -> None:
    assert (find_header_problem(value, with_credential=with_credential) is None) is good


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
def test_bad_expression_says_why(text: str, reason: str) -> None:
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


def test_value_of_the_wrong_type_is_an_expression_error() -> None:
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
def test_failed_evaluation_is_an_expression_error(text: str) -> None:
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
