"""Values: each setting of a process can be set, mistakes are refused, switches switch."""

import pytest

from gateway_apiserver.settings import ApiSettings, MediaSettings
from gateway_operator.settings import Settings as OperatorSettings

UNSET = {
    "operator": {
        "failpoints",  # for the crash tests
        "sweep_seconds",
        "heartbeat_seconds",
    },
}
"""Settings that an installation has no reason to change; extraEnv still can."""


@pytest.mark.parametrize(
    ("kind", "component", "settings"),
    [
        ("Deployment", "api", ApiSettings),
        ("Deployment", "media", MediaSettings),
        ("StatefulSet", "operator", OperatorSettings),
    ],
)
def test_every_setting_is_reached_from_the_values(chart, kind, component, settings):
    spec = chart.find(kind, f"-{component}")["spec"]["template"]["spec"]
    given = {entry["name"] for entry in spec["containers"][0]["env"]}
    wanted = {
        f"GATEWAY_{name.upper()}"
        for name in settings.model_fields
        if name not in UNSET.get(component, ())
    }
    assert given == wanted


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("{api: {replica: 3}}", "replica"),
        ("{operator: {replicas: 17}}", "16"),
        ("{store: {type: floppy}}", "directory"),
        ("{allowedCidrs: [everything]}", "allowedCidrs"),
        ("{media: {url: ftp://x}}", "url"),
        ("{api: {lingerSeconds: 20}}", "api.terminationGracePeriodSeconds must be at least"),
        ("{media: {terminationGracePeriodSeconds: 20}}", "media.terminationGracePeriodSeconds"),
        ("{redis: {enabled: false}}", "redis.external.urlSecret.name"),
    ],
)
def test_mistakes_are_refused_with_their_name(chart, values, text):
    assert text in chart.refusal(values)


def test_old_clusters_are_refused(chart):
    assert "kubeVersion" in chart.refusal("", kube_version="1.31.9")


def test_crds_are_in_the_templates_and_kept(chart):
    crds = [obj for obj in chart.render() if obj["kind"] == "CustomResourceDefinition"]
    assert crds
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_operators_divide_the_shards_by_their_ordinal(chart):
    spec = chart.find("StatefulSet", "-operator", "{operator: {replicas: 3}}")["spec"]
    env = {entry["name"]: entry for entry in spec["template"]["spec"]["containers"][0]["env"]}
    assert env["GATEWAY_REPLICAS"]["value"] == "3"
    field = env["GATEWAY_ORDINAL"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_autoscaling_takes_the_number_of_pods_over(chart):
    values = "{api: {autoscaling: {enabled: true, maxReplicas: 7}}}"
    deployment = chart.find("Deployment", "-api", values)
    assert "replicas" not in deployment["spec"]
    assert chart.find("HorizontalPodAutoscaler", "-api", values)["spec"]["maxReplicas"] == 7


def test_the_operator_comes_before_the_intake(chart):
    control = chart.find("FlowSchema", "-gw-control")["spec"]
    intake = chart.find("FlowSchema", "-gw-intake")["spec"]
    assert control["matchingPrecedence"] < intake["matchingPrecedence"]
    shares = [
        chart.find("PriorityLevelConfiguration", name)["spec"]["limited"][
            "nominalConcurrencyShares"
        ]
        for name in ("-gw-control", "-gw-intake")
    ]
    assert shares[0] > shares[1]


def test_secrets_are_no_part_of_the_release(chart, scenario):
    assert not [obj for obj in chart.render(scenario) if obj["kind"] == "Secret"]


def test_switches_switch(chart):
    values = """
      flowControl: {enabled: false}
      networkPolicies: {enabled: false}
      podDisruptionBudgets: false
      rbac: {aggregate: false}
      crds: {install: false}
    """
    kinds = {obj["kind"] for obj in chart.render(values)}
    assert not kinds & {
        "FlowSchema",
        "PriorityLevelConfiguration",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "ClusterRole",
        "CustomResourceDefinition",
    }
