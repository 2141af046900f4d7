"""Paths and header values with places to fill in."""

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_core.providers.templates import (
    PathTemplate,
    TemplateError,
    fill_header,
    find_header_problem,
)

TEXT = st.text(st.characters(), min_size=1, max_size=40)


@given(TEXT)
def test_a_value_never_leaves_its_segment(value: str) -> None:
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
def test_a_value_never_leaves_its_query_parameter(value: str) -> None:
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
def test_a_value_with_slashes_stays_below_its_place(value: str) -> None:
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
def test_a_value_that_would_walk_is_refused(template: str, value: str) -> None:
    with pytest.raises(TemplateError):
        PathTemplate(template, {"a"}).fill({"a": value})


@pytest.mark.parametrize(
    "text",
    ["/{b}", "/a b", "/a\r\nHost: x", "/{a", "/a}", "/{}", "/a#b", "/../{a}", "/%zz", "/ä", '/"'],
)
def test_a_bad_path_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        PathTemplate(text, {"a"})


def test_an_unknown_place_names_those_there_are() -> None:
    with pytest.raises(TemplateError, match=r"unknown placeholder \{id\}; there is \{jobId\}"):
        PathTemplate("/jobs/{id}", {"jobId"})


def test_a_header_takes_the_credential() -> None:
    assert fill_header("Bearer {credential}", "k") == "Bearer k"
    assert fill_header("plain {x}", None) == "plain {x}"


@pytest.mark.parametrize("credential", [None, "", "a\r\nX: y", "a\nb", "a\x00b"])
def test_a_credential_that_cannot_stand_in_a_header_is_refused(credential: str | None) -> None:
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
