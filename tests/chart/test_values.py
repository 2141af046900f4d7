"""Each setting of a process can be set; old clusters are refused; no secret is in a release."""

import re

import pytest
import yaml

from gateway_apiserver.settings import ApiSettings, MediaSettings
from gateway_mcpserver.settings import McpSettings
from gateway_operator.settings import Settings as OperatorSettings
from tests.chart.conftest import CHART, NAMESPACE, ROOT

UNSET = {
    "api": {
        "failpoints",  # for the crash tests
        "reuse_port",  # for the local run
    },
    "mcp": {
        "failpoints",  # for the crash tests
        # it serves no bytes
        "max_downloads",
        "max_downloads_per_address",
        "max_downloads_per_link",
    },
    "operator": {
        "failpoints",  # for the crash tests
        "sweep_seconds",
        "heartbeat_seconds",
        "fold_seconds",
        "fold_most",
        "retention_least_seconds",
        "retention_ended_per_account",
        "record_seconds",
        "claim_seconds",
    },
}
"""Settings that an installation has no reason to change; extraEnv still can."""

RUNTIME = {"MALLOC_ARENA_MAX"}
"""What is for the C library, not a setting of ours."""

S3 = "store: {type: s3, s3: {bucket: objects}}"
"""Both stores have settings that the other has not."""

MAIL = "smtp: {host: mail.example.com, from: gateway@example.com}"
SENTINELS = """\
redis:
  enabled: false
  external:
    url: rediss:///0
    authSecret: {name: user, usernameKey: username}
    tls: {caSecret: {name: ca}, certificateSecret: client}
    sentinel: {addresses: ["sentinel:26379"], authSecret: {name: user, usernameKey: username}}
"""


@pytest.mark.parametrize(
    ("kind", "component", "settings"),
    [
        ("Deployment", "api", ApiSettings),
        ("Deployment", "mcp", McpSettings),
        ("Deployment", "media", MediaSettings),
        ("StatefulSet", "operator", OperatorSettings),
    ],
)
def test_every_setting_is_reached_from_the_values(chart, kind, component, settings):
    given = set[str]()
    for values in ("", S3, SENTINELS, MAIL):
        spec = chart.find(kind, f"-{component}", values)["spec"]["template"]["spec"]
        given |= {entry["name"] for entry in spec["containers"][0]["env"]}
    wanted = {
        f"GATEWAY_{name.upper()}"
        for name in settings.model_fields
        if name not in UNSET.get(component, ())
    }
    assert given - RUNTIME == wanted


def test_push_leads_from_the_provider_to_the_operators_replica(chart):
    values = "push: {enabled: true, url: 'https://in.example'}\nfullnameOverride: gw"
    values += "\nnetworkPolicies: {metricsFrom: [{podSelector: {}}]}\noperator: {replicas: 3}"

    def env(kind, component):
        spec = chart.find(kind, f"-{component}", values)["spec"]["template"]["spec"]
        return {e["name"]: e.get("value") for e in spec["containers"][0]["env"]}

    assert env("StatefulSet", "operator")["GATEWAY_NOTIFY_URL"] == "https://in.example"
    api = env("Deployment", "api")
    address = f"http://gw-operator-{{ordinal}}.gw-operator.{NAMESPACE}.svc:8082"
    assert (api["GATEWAY_OPERATOR_URL"], api["GATEWAY_OPERATOR_REPLICAS"]) == (address, "3")
    service = chart.find("Service", "gw-operator", values)["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", 8082)
    assert chart.find("StatefulSet", "-operator", values)["spec"]["serviceName"] == "gw-operator"
    inner = chart.find("NetworkPolicy", "-operator", values)["spec"]["ingress"][0]["from"]
    label = "app.kubernetes.io/component"
    assert "api" in [peer["podSelector"].get("matchLabels", {}).get(label) for peer in inner]
    egress = chart.find("NetworkPolicy", "-api", values)["spec"]["egress"]
    (link,) = [rule for rule in egress if rule["ports"] == [{"port": "health"}]]
    assert link["to"][0]["podSelector"]["matchLabels"][label] == "operator"


def test_old_clusters_are_refused(chart):
    assert "kubeVersion" in chart.refusal("", kube_version="1.31.9")


def test_documented_helm_renders_the_chart_without_naming_a_cluster(chart):
    # each Helm carries the version of Kubernetes that it assumes: 3.16 has 1.31, 3.17 has 1.32
    asked = yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
    assert asked.startswith(">=1.32.")
    for page in (
        "docs/install.md",
        "docs/operations/production.md",
        "charts/model-gateway/README.md",
    ):
        text = (ROOT / page).read_text()
        assert re.findall(r"Helm (\d\.\d+) or newer", text) == ["3.17"], page
        assert re.findall(r"Kubernetes (\d\.\d+) or newer", text) == ["1.32"], page
    done = chart.run("template", "gateway", str(CHART))
    assert done.returncode == 0, done.stderr


def test_secrets_are_no_part_of_the_release(chart, scenario):
    assert not [obj for obj in chart.render(scenario) if obj["kind"] == "Secret"]
