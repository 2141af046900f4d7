"""Answers of Prometheus become curves, and curves the dashboard's picture."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.dashboard import build_dashboard
from tools.dashboard import list_queries as list_expected
from tools.pictures.dashboard import compose, fill_variables, list_queries
from tools.pictures.plots import (
    Curve,
    Place,
    Span,
    choose_ticks,
    draw_plot,
    show_value,
    split_gaps,
    stack,
)
from tools.pictures.prometheus import Series, read_matrix
from tools.programs import PROGRAMS

BOARD = json.loads(build_dashboard())
SPAN = Span(1000, 1060, 5)
PLACE = Place(10, 20, 500, 200)
SVG = "{http://www.w3.org/2000/svg}"


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def test_series_are_in_order_and_without_values_that_are_none():
    metric = [{"pod": "b"}, {"pod": "a"}]
    values = [[[1000, "1.5"], [1005, "NaN"], [1010, "2"]], [[1000, "0"]]]
    answer = [{"metric": m, "values": v} for m, v in zip(metric, values, strict=True)]
    first, second = read_matrix(answer)
    assert (first.labels, first.points) == ({"pod": "a"}, [(1000.0, 0.0)])
    assert (second.labels, second.points) == ({"pod": "b"}, [(1000.0, 1.5), (1010.0, 2.0)])


def test_every_query_of_the_dashboard_is_asked_without_variables():
    assert list_queries(BOARD) == list_expected()
    filled = [fill_variables(query, "model-gateway") for query in list_queries(BOARD)]
    assert not [query for query in filled if "$" in query]
    assert 'namespace="model-gateway"' in filled[0]
    assert "[20s]" in filled[0]


def test_dashboard_is_drawn_with_all_rows_and_panels_within_the_picture():
    points = [(1000 + 5 * n, 1 + math.sin(n)) for n in range(13)]
    answers = {query: [Series({"surface": "<chat>"}, points)] for query in list_queries(BOARD)}
    root = read(compose(BOARD, answers, SPAN))
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert {panel["title"] for panel in BOARD["panels"]} <= set(texts)
    _, _, width, height = map(float, root.get("viewBox").split())
    places = [
        (*map(float, group.get("transform")[10:-1].split()), group.find(f"{SVG}rect"))
        for group in root.iter(f"{SVG}g")
    ]
    assert len(places) == sum("targets" in panel for panel in BOARD["panels"])
    assert len({(x, y) for x, y, _ in places}) == len(places)
    for x, y, rect in places:
        assert x + float(rect.get("width")) <= width
        assert y + float(rect.get("height")) <= height


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0025, "s", "2.5 ms"),
        (90, "s", "90 s"),
        (600, "s", "10 min"),
        (1536, "bytes", "1.5 KiB"),
        (2_000_000, "Bps", "2 MB/s"),
        (0.25, "percentunit", "25 %"),
        (0.4, "reqps", "0.4 req/s"),
        (1200, "short", "1.2 K"),
    ],
)
def test_values_are_shown_in_the_unit_that_suits_them(value, unit, text):
    assert show_value(value, unit, value) == text


@pytest.mark.parametrize("top", [0.003, 0.9, 1, 3.7, 99, 1234, 8_000_000])
@pytest.mark.parametrize("unit", ["s", "bytes", "short"])
def test_axis_begins_at_zero_and_ends_at_a_round_figure_above_the_values(top, unit):
    ticks = choose_ticks(top, unit)
    assert ticks[0] == 0
    assert top * 0.999 <= ticks[-1] < top * 2
    assert 3 <= len(ticks) <= 6


def test_stacked_curves_add_up_where_they_have_values():
    first, second = stack([Curve("a", [(0, 1), (5, 2)]), Curve("b", [(5, 3), (10, 4)])])
    assert first == [(0, 1), (5, 2), (10, 0)]
    assert second == [(0, 1), (5, 5), (10, 4)]


def test_line_is_broken_where_values_are_missing():
    assert split_gaps([(0, 1), (5, 1), (20, 1)], 5) == [[(0, 1), (5, 1)], [(20, 1)]]


def test_panel_without_values_says_so_and_a_long_legend_is_cut():
    empty = read(draw_plot("Empty", "s", [Curve("a", [])], False, PLACE, SPAN))
    assert [text.text for text in empty.iter("text")] == ["Empty", "No data"]
    curves = [Curve(f"a long name of series {n}", [(1000, n), (1005, n)]) for n in range(40)]
    full = read(draw_plot("Full", "s", curves, True, PLACE, SPAN))
    texts = [text.text for text in full.iter("text")]
    assert texts[-1].startswith("+ ")
    assert len(list(full.iter("path"))) >= 2 * len(curves)


def test_prometheus_is_pinned_and_not_built_for_tests():
    program = PROGRAMS["prometheus"]
    assert not program.is_for_tests
    folder = Path(__file__).resolve().parents[3] / "tools" / program.modules
    assert f"tool {program.package}\n" in (folder / "go.mod").read_text()
