"""`gatewayctl doctor`, `status` and `top` on a real API server whose gateway has trouble."""

import json

import pytest

from tests.servers.tenants import unique

LABELS = {
    "app.kubernetes.io/part-of": "model-gateway",
    "app.kubernetes.io/component": "operator",
}


@pytest.fixture(autouse=True)
def cluster(gatewayctl, control_plane, tmp_path, monkeypatch):
    """A kubeconfig outside of the folder of the control plane's own local run."""
    path = tmp_path / "kubeconfig"
    path.write_text(control_plane.config.cluster_kubeconfig.read_text())
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


@pytest.fixture
def pod(control_plane, tmp_path):
    """The name of a pod of the gateway that cannot start, as the kubelet would report it."""
    # of its own: other tests on this control plane have the accounts of the chart
    name = unique("gateway-operator")
    path = tmp_path / "pod.json"
    spec = {
        "containers": [{"name": "operator", "image": "example.invalid/x"}],
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
    }
    meta = {"name": name, "labels": LABELS}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [account, pod]}))
    control_plane.kubectl("create", "-f", str(path))
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    container = {
        "name": "operator",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    patch = json.dumps({"status": {"phase": "Pending", "containerStatuses": [container]}})
    options = ("--subresource=status", "--type=merge", f"--patch={patch}")
    control_plane.kubectl("patch", "pod", name, *options)
    yield name
    control_plane.kubectl("delete", "--force", f"pod/{name}", f"serviceaccount/{name}")


def find_check(said, name):
    [check] = [check for check in said.document["checks"] if check["name"] == name]
    return check


def test_doctor_names_the_pod_that_cannot_start(gatewayctl, pod):
    said = gatewayctl("doctor", "-o", "json", code=1)
    assert said.document["ok"] is False
    assert find_check(said, "control plane")["state"] == "ok"
    assert find_check(said, "definitions")["state"] == "ok"
    [finding] = find_check(said, "processes")["findings"]
    assert finding["subject"] == f"operator {pod}"
    assert finding["text"].startswith("ImagePullBackOff: not found")
    shown = gatewayctl("status")
    assert "ImagePullBackOff" in shown.out
    assert "gatewayctl doctor" in shown.err


def test_doctor_says_that_nothing_is_installed(gatewayctl):
    said = gatewayctl("doctor", "-o", "json", code=1)
    [finding] = find_check(said, "processes")["findings"]
    assert "install the chart" in finding["action"]


def test_doctor_without_a_control_plane_says_so(gatewayctl, cluster, control_plane):
    port = f":{control_plane.config.ports.kube_apiserver}"
    cluster.write_text(cluster.read_text().replace(port, ":1"))
    said = gatewayctl("doctor", code=1)
    assert "✗ control plane" in said.out
    assert "does not answer" in said.out
    assert "→ name a cluster" in said.out
