"""What each process may do, and with which secrets it starts."""

import pytest


def _allowed(chart, component, values=""):
    """(resource, verb) to the resource names it is limited to, if any."""
    role = chart.find("Role", f"model-gateway-{component}", values)
    return {
        (resource, verb): rule.get("resourceNames")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _mounted_secrets(chart, kind, component):
    spec = chart.find(kind, f"-{component}")["spec"]["template"]["spec"]
    return [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]


def test_the_api_reads_no_secret_and_writes_no_status(chart):
    allowed = _allowed(chart, "api")
    assert not [right for right in allowed if "secret" in right[0] or "/" in right[0]]
    assert {right for right in allowed if right[1] not in ("get", "list", "watch")} == {
        ("gatewaytasks", "create")
    }


def test_no_role_has_wildcards_and_none_is_the_clusters(chart):
    for obj in chart.render("{simulator: {enabled: true}}"):
        if obj["kind"] == "Role":
            for rule in obj["rules"]:
                assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert obj["kind"] != "ClusterRoleBinding"


def test_the_operator_reads_only_the_secrets_named(chart):
    named = _allowed(chart, "operator", "{operator: {secretNames: [provider-a]}}")
    assert named["secrets", "get"] == ["provider-a"]
    assert ("secrets", "list") not in named


def test_the_operator_makes_no_task(chart):
    assert ("gatewaytasks", "create") not in _allowed(chart, "operator")


@pytest.mark.parametrize(
    ("kind", "component", "secret"),
    [
        ("Deployment", "api", "gateway-model-gateway-api-keys"),
        ("Deployment", "media", "gateway-model-gateway-media-key"),
        ("StatefulSet", "operator", "gateway-model-gateway-media-key"),
    ],
)
def test_a_process_has_its_own_secret_only(chart, kind, component, secret):
    assert _mounted_secrets(chart, kind, component) == [secret]


def test_only_what_calls_the_cluster_has_its_token(chart):
    values = "{simulator: {enabled: true}}"
    holders = {
        obj["metadata"]["name"].removeprefix("gateway-model-gateway-")
        for obj in chart.render(values)
        if obj["kind"] in ("Deployment", "StatefulSet", "Job", "Pod")
        and obj["spec"].get("template", obj)["spec"]["automountServiceAccountToken"]
    }
    assert holders == {"api", "operator", "secrets", "first-objects"}
