"""Alerts speak of metrics that the processes have."""

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway_apiserver.metrics import ApiMetrics
from gateway_operator.metrics import Metrics as OperatorMetrics

VALUES = "{monitoring: {prometheusRule: {enabled: true}}}"


def _known_names():
    """Names of all series, as Prometheus sees them."""
    operator = OperatorMetrics()
    operator.show_shards([0])
    told = (ApiMetrics().render(), generate_latest(operator.registry))
    families = [f for text in told for f in text_string_to_metric_families(text.decode())]
    suffix = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + end for family in families for end in suffix.get(family.type, ("",))}


def test_every_alert_is_of_metrics_that_there_are(chart):
    [group] = chart.find("PrometheusRule", "-alerts", VALUES)["spec"]["groups"]
    assert len(group["rules"]) > 4
    known = _known_names()
    for rule in group["rules"]:
        named = set(re.findall(r"\bgateway_\w+", rule["expr"]))
        assert named <= known, rule["alert"]
        assert named or rule["alert"] == "GatewayProcessDown"


def test_every_alert_says_how_bad_it_is_and_what_it_is_of(chart):
    [group] = chart.find("PrometheusRule", "-alerts", VALUES)["spec"]["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"]["summary"]
        assert 'namespace="model-gateway"' in rule["expr"]
