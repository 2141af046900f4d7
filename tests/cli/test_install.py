"""The steps of the chart's hook Jobs against a real API server: they do their part, and once."""

import base64

import pytest
import yaml

ACCOUNT = {
    "apiVersion": "modelgateway.dev/v1alpha1",
    "kind": "GatewayAccount",
    "metadata": {"name": "applied"},
    "spec": {"displayName": "Acme", "owner": {"name": "Ann", "email": "ann@example.com"}},
}


def read_secret(read, name):
    data = read("secret", name)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_apply_makes_objects_and_restores_the_fields_of_the_file(
    gatewayctl, control_plane, read, tmp_path
):
    path = tmp_path / "acme.yaml"
    path.write_text(yaml.safe_dump(ACCOUNT))
    assert gatewayctl("apply", "-f", str(path)).out == "GatewayAccount/applied created\n"
    assert gatewayctl("apply", "-f", str(path)).out == "GatewayAccount/applied unchanged\n"
    change = '{"spec": {"displayName": "Other", "suspended": true}}'
    control_plane.kubectl("patch", "gatewayaccount", "applied", "--type=merge", f"--patch={change}")
    assert gatewayctl("apply", "-f", str(tmp_path)).out == "GatewayAccount/applied updated\n"
    spec = read("gatewayaccount", "applied")["spec"]
    assert (spec["displayName"], spec["suspended"]) == ("Acme", True)


def test_apply_quotes_the_schema(gatewayctl, tmp_path):
    wrong = {**ACCOUNT, "spec": {**ACCOUNT["spec"], "requestsPerMinute": 0}}
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(wrong))
    assert "requestsPerMinute" in gatewayctl("apply", "-f", path, code=4).refusal


@pytest.mark.parametrize("value", [5, ["a"], {"a": "b"}])
def test_apply_names_the_field_of_another_type(gatewayctl, tmp_path, value):
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump({**ACCOUNT, "spec": {**ACCOUNT["spec"], "displayName": value}}))
    text = gatewayctl("apply", "-f", path, code=4).refusal
    assert text == "✗ GatewayAccount applied: .spec.displayName: expected string"


def test_apply_names_the_field_that_is_unknown(gatewayctl, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump({**ACCOUNT, "spec": {**ACCOUNT["spec"], "color": "red"}}))
    text = gatewayctl("apply", "-f", path, code=4).refusal
    assert text == "✗ GatewayAccount applied: .spec.color: field not declared in schema"


@pytest.mark.parametrize("content", ["just text", "kind: GatewayAccount", "a: [", "- 1"])
def test_apply_refuses_a_file_without_objects(gatewayctl, tmp_path, content):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    text = gatewayctl("apply", "-f", path, code=4).err.replace("\n", "")
    assert str(path.name) in text
    assert "unicode string" not in text


def test_apply_names_a_file_that_cannot_be_read(gatewayctl, tmp_path):
    missing = tmp_path / "none.yaml"
    text = gatewayctl("apply", "-f", missing, code=4).refusal
    assert text == f"✗ {missing}: no such file or directory"


def test_secrets_are_made_once(gatewayctl, control_plane, read, request):
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
    first = [read_secret(read, name) for name in names]
    assert len(base64.urlsafe_b64decode(first[0]["pepper-1"])) == 32
    assert first[2]["url"] == f"redis://:{first[2]['password']}@redis.svc:6379/0"
    assert gatewayctl(*command).out.splitlines() == [f"Secret/{name} unchanged" for name in names]
    assert [read_secret(read, name) for name in names] == first
