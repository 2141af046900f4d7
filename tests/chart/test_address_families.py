"""The chart's processes listen, and their probes succeed, whichever address families a node has."""

import pytest

from tests.chart.conftest import Chart
from tests.servers.address_families import POD_ADDRESS
from tests.servers.namespaces import run_alone

VALUES = "{simulator: {enabled: true}, listenAddress: '%s'}"
OWN = {
    "GATEWAY_REDIS_URL": "redis://localhost:1",
    "GATEWAY_SECRETS_DIR": "/tmp",
    "GATEWAY_STORE_DIR": "/tmp",
    "GATEWAY_ORDINAL": "0",
    "GATEWAY_SIMULATOR_STATE_DIR": "/tmp",
    "GATEWAY_SIMULATOR_TOKEN": "t",
    "REDISCLI_AUTH": "secret",
}
"""Values that a pod gets from Secrets, volumes and the kubelet."""


def read_value(variable: dict) -> str:
    """The value of a variable; the pod's address stands for itself."""
    source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return POD_ADDRESS if source == "status.podIP" else variable.get("value", "")


def list_pods(chart: Chart, values: str, *names: str) -> list[dict]:
    containers = {
        container["name"]: container
        for obj in chart.render(values)
        if obj["kind"] in ("Deployment", "StatefulSet")
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert containers.keys() == {"api", "mcp", "media", "operator", "redis", "simulator"}
    return [
        {
            "name": name,
            "container": containers[name],
            "env": {e["name"]: read_value(e) for e in containers[name]["env"]} | OWN,
        }
        for name in names or sorted(containers)
    ]


@pytest.mark.parametrize(
    ("network", "listen", "names"),
    [
        pytest.param("IPv6", "", ()),
        ("IPv4", "", ("redis", "simulator")),
        ("IPv4", "0.0.0.0", ("redis",)),
        ("IPv4, kernel without IPv6", "", ("redis", "simulator")),
        ("both", "", ("redis", "simulator")),
    ],
)
def test_pods_are_reached_and_live(
    chart: Chart, network: str, listen: str, names: tuple[str, ...]
) -> None:
    given = {"network": network, "pods": list_pods(chart, VALUES % listen, *names)}
    problems = run_alone("tests.servers.address_families", "--net", given=given)
    assert problems == {pod["name"]: [] for pod in given["pods"]}


@pytest.mark.parametrize("listen", ["", "::", "0.0.0.0"])
def test_every_listener_has_the_same_address(chart: Chart, listen: str) -> None:
    hosts = {
        (pod["name"], name): value
        for pod in list_pods(chart, VALUES % listen)
        for name, value in pod["env"].items()
        if name.endswith("_HOST")
    }
    # kopf listens at one address, which is the one that the kubelet probes
    assert hosts.pop(("operator", "GATEWAY_LIVENESS_HOST")) == POD_ADDRESS
    assert len(hosts) == 8
    assert set(hosts.values()) == {"0.0.0.0" if listen == "0.0.0.0" else ""}
