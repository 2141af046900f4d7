"""The dashboard is what Grafana exports, without what belongs to one Grafana."""

import json

import pytest
from tools.dashboard import PATH, list_queries, normalize


def test_export_of_another_grafana_becomes_the_file_of_the_chart():
    board = json.loads(PATH.read_text())
    exported = {**board, "id": 17, "version": 4, "__inputs": [], "iteration": 1}
    exported["panels"] = [{**panel, "id": 99, "pluginVersion": "12"} for panel in board["panels"]]
    exported["panels"].reverse()
    assert normalize(json.dumps(exported)) == PATH.read_text()


def test_query_without_the_chosen_processes_is_refused():
    query = list_queries()[0]
    text = PATH.read_text().replace(json.dumps(query), json.dumps("sum(gateway_tasks{pod='a'})"))
    with pytest.raises(ValueError, match="does not select"):
        normalize(text)


def test_panel_of_a_fixed_data_source_is_refused():
    text = PATH.read_text().replace('"uid": "${datasource}"', '"uid": "P1809"')
    with pytest.raises(ValueError, match="does not ask"):
        normalize(text)
