"""The NetworkPolicies, in a namespace that denies what none allows: every pod has one in time."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

import pytest
import yaml

from tests.chart.conftest import Chart

HOOK = "helm.sh/hook"
ELSEWHERE = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
RESTRICTED = yaml.safe_dump(
    {
        "simulator": {"enabled": True},
        "tests": {"callback": True},
        "networkPolicies": dict.fromkeys(
            ("apiFrom", "mcpFrom", "mediaFrom", "metricsFrom"), ELSEWHERE
        ),
    }
)


@dataclass(frozen=True)
class Placed:
    """A pod or a policy, and the events and weight of the hook that it is."""

    spec: dict
    labels: dict[str, str] = field(default_factory=dict)
    hooks: frozenset[str] = frozenset()
    weight: int = 0


def place(obj: dict, spec: dict, labels: dict[str, str]) -> Placed:
    notes = obj["metadata"].get("annotations", {})
    hooks = frozenset(filter(None, notes.get(HOOK, "").split(",")))
    return Placed(spec, labels, hooks, int(notes.get(f"{HOOK}-weight", 0)))


def list_pods(chart: Chart, values: str) -> dict[str, Placed]:
    pods = {}
    for obj in chart.render(values):
        if obj["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"):
            spec = obj["spec"]
            spec = spec.get("jobTemplate", {"spec": spec})["spec"]
            template = spec.get("template", obj)
            labels = template["metadata"]["labels"]
            name = labels["app.kubernetes.io/component"]
            pods[name] = place(obj, template["spec"], labels)
    return pods


def list_policies(chart: Chart, values: str) -> list[Placed]:
    return [
        place(obj, obj["spec"], {})
        for obj in chart.render(values)
        if obj["kind"] == "NetworkPolicy"
    ]


def selects(selector: dict, labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def exists_for(policy: Placed, pod: Placed) -> bool:
    """Return whether helm creates the policy before the pod, and keeps it as long."""
    if policy.hooks:
        return bool(pod.hooks) and pod.hooks <= policy.hooks and policy.weight < pod.weight
    return all(event == "test" or event.startswith("post-") for event in pod.hooks)


def allows(rules: list[dict], side: str, port: object, other: Placed | str) -> bool:
    """Return whether a rule lets a port through, from or to a pod, or to an address outside."""
    for rule in rules:
        ports = [entry["port"] for entry in rule.get("ports", [])]
        if (not ports or port in ports) and (
            side not in rule or any(matches(peer, other) for peer in rule[side])
        ):
            return True
    return False


def matches(peer: dict, other: Placed | str) -> bool:
    if "ipBlock" in peer:
        if isinstance(other, Placed):
            return False
        block = peer["ipBlock"]
        address = ip_address(other)
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(part) for part in block.get("except", ())
        )
    if isinstance(other, str):
        return False
    if "namespaceSelector" in peer:
        return peer["namespaceSelector"] == {}
    return selects(peer["podSelector"], other.labels)


def can_reach(policies: list[Placed], source: Placed, target: Placed | str, port: object) -> bool:
    ways = [(source, "egress", "to", target)]
    if isinstance(target, Placed):
        ways.append((target, "ingress", "from", source))
    return all(
        any(
            allows(policy.spec[direction], side, port, other)
            for policy in policies
            if selects(policy.spec["podSelector"], pod.labels) and exists_for(policy, pod)
        )
        for pod, direction, side, other in ways
    )


def test_every_pod_is_selected_by_a_policy_that_exists_before_it(chart, scenario):
    pods, policies = list_pods(chart, scenario), list_policies(chart, scenario)
    enabled = (yaml.safe_load(scenario) or {}).get("networkPolicies", {}).get("enabled", True)
    assert bool(policies) == enabled
    unselected = {
        name
        for name, pod in pods.items()
        for direction in ("Ingress", "Egress")
        if not any(
            direction in policy.spec["policyTypes"]
            and selects(policy.spec["podSelector"], pod.labels)
            and exists_for(policy, pod)
            for policy in policies
        )
    }
    assert unselected == (set() if enabled else set(pods))


def test_pods_reach_what_they_call_and_no_more(chart):
    pods, policies = list_pods(chart, RESTRICTED), list_policies(chart, RESTRICTED)
    ports = {"operator": "health", "redis": "redis", "test": 54321}
    reached = {
        (source, target)
        for source in pods
        for target in pods
        if can_reach(policies, pods[source], pods[target], ports.get(target, "http"))
    }
    assert reached == {
        *((source, "redis") for source in ("api", "mcp", "operator")),
        *((source, "simulator") for source in ("api", "operator")),
        *(("test", target) for target in ("api", "media")),
        ("api", "operator"),
        ("operator", "test"),
    }


@pytest.mark.parametrize("address", ["10.96.0.1", "fd00::1"])
def test_pods_that_call_the_kubernetes_api_reach_it_and_names(chart, address):
    pods, policies = list_pods(chart, RESTRICTED), list_policies(chart, RESTRICTED)
    for port in (443, 6443):
        reached = {name for name in pods if can_reach(policies, pods[name], address, port)}
        assert {"api", "mcp", "operator", "secrets", "hooks"} <= reached
        assert not reached & {"media", "redis", "simulator", "test"}
    names = {name for name in pods if can_reach(policies, pods[name], address, 53)}
    assert names == set(pods) - {"media", "redis", "simulator"}


def test_test_pod_reaches_a_video_at_its_public_address(chart):
    values = "{simulator: {enabled: true}, media: {url: 'https://media.example.com'}}"
    pod, policies = list_pods(chart, values)["test"], list_policies(chart, values)
    assert can_reach(policies, pod, "203.0.113.9", 443)
    assert not can_reach(policies, pod, "169.254.169.254", 443)
