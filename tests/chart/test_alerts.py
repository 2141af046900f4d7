"""Alerts and dashboard ask for what the processes have, and each alert says what to do."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from tools.dashboard import list_queries
from tools.metrics import list_metrics

from tests.chart.queries import check_query, parse, walk

ROOT = Path(__file__).resolve().parents[2]
VALUES = (
    "{monitoring: {prometheusRule: {enabled: true, runbooks: 'https://x/a'},"
    " dashboard: {enabled: true}}}"
)
RULES = yaml.safe_load((ROOT / "charts/model-gateway/files/alerts.yaml").read_text())


def rules_of(chart):
    [group] = chart.find("PrometheusRule", "-alerts", VALUES)["spec"]["groups"]
    return group["rules"]


def test_query_check_finds_mistakes():
    """The check itself: each of these has one mistake."""
    good = 'sum by (route) (rate(gateway_http_requests_total{status="200"}[5m]))'
    assert check_query(good) == {"gateway_http_requests_total"}
    for bad in (
        good.replace("requests_total", "request_total"),
        good.replace("status", "stat"),
        good.replace("by (route)", "by (rout)"),
        "sum(gateway_tasks) / sum by (reason) (rate(gateway_tasks_ended[5m]))",
        "histogram_quantile(0.9, sum by (le) (rate(gateway_task_duration_seconds[5m])))",
        "up / on (shard) group_left sum by (pod) (gateway_build_info)",
    ):
        with pytest.raises(AssertionError):
            check_query(bad)
    with pytest.raises(ValueError, match="parenthesis"):
        parse("sum by (")


def test_alerts_query_known_metrics_of_the_release(chart):
    rules = rules_of(chart)
    assert [rule["alert"] for rule in rules] == [rule["alert"] for rule in RULES]
    for rule in rules:
        assert check_query(rule["expr"]), rule["alert"]
        for selector in walk(parse(rule["expr"])):
            if isinstance(selector, promql_parser.VectorSelector):
                chosen = {m.name: m.value for m in selector.matchers.matchers}
                assert chosen["namespace"] == "model-gateway", rule["alert"]
                assert chosen["service"].endswith(
                    "-(api-health|mcp-health|media-health|operator)"
                ), rule["alert"]


def test_alerts_have_severity_texts_and_runbook(chart):
    for rule in rules_of(chart):
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        assert notes["summary"], name
        assert notes["description"].endswith("."), name
        assert notes["runbook_url"] == f"https://x/a#{name.lower()}"


def test_alert_texts_use_only_labels_of_their_query():
    for rule in RULES:
        said = " ".join(rule["annotations"].values())
        left = set(re.findall(r"\$labels\.(\w+)", said))
        grouped = set(re.findall(r"by \(([^)]*)\)", rule["expr"]))
        held = {label.strip() for group in grouped for label in group.split(",")}
        assert left <= held | ({"pod"} if not grouped else set()), rule["alert"]


def test_runbook_has_one_section_for_each_alert():
    text = (ROOT / "docs/alerts.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert list(sections) == [rule["alert"] for rule in RULES]
    for name, section in sections.items():
        assert len(section.split()) > 25, name


def test_panels_query_known_metrics():
    for query in list_queries():
        assert check_query(query), query


@pytest.mark.parametrize(("percent", "ratio"), [(80, "0.7"), (10, "0.0875"), (95, "0.8313")])
def test_record_alert_warns_before_intake_stops(chart, percent, ratio):
    values = f"{VALUES[:-1]}, record: {{stopPercent: {percent}}}}}"
    [group] = chart.find("PrometheusRule", "-alerts", values)["spec"]["groups"]
    [expr] = [rule["expr"] for rule in group["rules"] if rule["alert"] == "GatewayRecordFills"]
    assert expr.endswith(f" > {ratio}")


def test_every_metric_is_in_an_alert_or_a_panel(chart):
    asked = {name for query in list_queries() for name in check_query(query)}
    asked |= {name for rule in rules_of(chart) for name in check_query(rule["expr"])}
    for metrics in list_metrics().values():
        for metric in metrics:
            assert asked & set(metric.series), metric.name


def test_dashboard_of_the_chart_has_each_panel_at_a_place_of_its_own(chart):
    made = chart.find("ConfigMap", "-dashboard", VALUES)
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    text = made["data"]["model-gateway.json"]
    assert list_queries(text) == list_queries()
    places = [tuple(panel["gridPos"].values()) for panel in json.loads(text)["panels"]]
    assert len(set(places)) == len(places)
