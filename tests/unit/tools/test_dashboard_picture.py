"""Answers of Prometheus become the dashboard's picture."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

from tools.dashboard import PATH, list_queries
from tools.pictures.dashboard import STEP_SECONDS, Span, draw, fill_variables
from tools.programs import PROGRAMS

BOARD = json.loads(PATH.read_text())
BOARD["panels"] = BOARD["panels"][:4]
SPAN = Span(1000, 1060)


def read_texts(answers):
    root = ElementTree.fromstring(draw(BOARD, answers, SPAN))
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_query_of_the_dashboard_is_asked_without_variables():
    filled = [fill_variables(query, "model-gateway") for query in list_queries()]
    assert not [query for query in filled if "$" in query]
    assert 'namespace="model-gateway"' in filled[0]
    assert "[20s]" in filled[0]


def test_panels_are_drawn_with_units_and_names_of_series_or_say_that_they_are_empty():
    times = range(SPAN.start, SPAN.end + 1, STEP_SECONDS)
    values = [[at, str(0.002 * (1 + math.sin(at)))] for at in times]
    values[3][1] = "NaN"
    empty = read_texts({query: [] for query in list_queries()})
    assert empty.count("No data") == sum("targets" in panel for panel in BOARD["panels"])
    series = [{"metric": {"surface": "<chat>"}, "values": values}]
    texts = read_texts(dict.fromkeys(list_queries(), series))
    assert {panel["title"] for panel in BOARD["panels"]} <= set(texts)
    assert {"<chat>", "2ms", "0.004 req/s"} <= set(texts), texts
    assert "No data" not in texts


def test_prometheus_is_pinned_and_not_built_for_tests():
    program = PROGRAMS["prometheus"]
    assert not program.is_for_tests
    folder = Path(__file__).resolve().parents[3] / "tools" / program.modules
    assert f"tool {program.package}\n" in (folder / "go.mod").read_text()
