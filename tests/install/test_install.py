"""The steps of the chart's hook Jobs against a real API server: they do their part, and once."""

import base64
import json

import pytest
import yaml
from typer.testing import CliRunner

from gateway_cli.__main__ import app

ACCOUNT = {
    "apiVersion": "modelgateway.dev/v1alpha1",
    "kind": "GatewayAccount",
    "metadata": {"name": "applied"},
    "spec": {"displayName": "Acme", "owner": {"name": "Ann", "email": "ann@example.com"}},
}


@pytest.fixture
def gatewayctl(control_plane, monkeypatch):
    """Runs a command on the cluster; its exit code must be as expected."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.config.cluster_kubeconfig))
    monkeypatch.setenv("GATEWAY_NAMESPACE", control_plane.namespace)

    def run(*arguments, code=0):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return run


def _read(control_plane, kind, name):
    return json.loads(control_plane.kubectl("get", kind, name, "--output=json"))


def _read_secret(control_plane, name):
    data = _read(control_plane, "secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_apply_makes_objects_and_puts_back_what_the_file_names(gatewayctl, control_plane, tmp_path):
    path = tmp_path / "acme.yaml"
    path.write_text(yaml.safe_dump(ACCOUNT))
    gatewayctl("apply", "-f", str(path))
    change = '{"spec": {"displayName": "Other", "suspended": true}}'
    control_plane.kubectl("patch", "gatewayaccount", "applied", "--type=merge", f"--patch={change}")
    gatewayctl("apply", "-f", str(tmp_path))
    spec = _read(control_plane, "gatewayaccount", "applied")["spec"]
    assert (spec["displayName"], spec["suspended"]) == ("Acme", True)


def test_apply_says_what_the_schema_refuses(gatewayctl, tmp_path):
    wrong = {**ACCOUNT, "spec": {**ACCOUNT["spec"], "requestsPerMinute": 0}}
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(wrong))
    assert "requestsPerMinute" in gatewayctl("apply", "-f", str(path), code=4)


@pytest.mark.parametrize("content", ["just text", "kind: GatewayAccount", "a: [", "- 1"])
def test_apply_refuses_what_is_no_object(gatewayctl, tmp_path, content):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    assert str(path.name) in gatewayctl("apply", "-f", str(path), code=4).replace("\n", "")


def test_secrets_are_made_once(gatewayctl, control_plane, request):
    command = (
        "install",
        "secrets",
        "--api-keys=made-keys",
        "--media-key=made-media",
        "--redis=made-redis",
        "--redis-address=redis.svc:6379",
    )
    names = ("made-keys", "made-media", "made-redis")
    # other tests of this API server expect one Secret with the gateway's label
    request.addfinalizer(lambda: control_plane.kubectl("delete", "secret", *names))
    gatewayctl(*command)
    first = [_read_secret(control_plane, name) for name in names]
    assert len(base64.urlsafe_b64decode(first[0]["pepper-1"])) == 32
    assert first[2]["url"] == f"redis://:{first[2]['password']}@redis.svc:6379/0"
    assert "is there" in gatewayctl(*command)
    assert [_read_secret(control_plane, name) for name in names] == first
