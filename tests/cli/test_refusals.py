"""Refusals of gatewayctl: each says what to do, without a traceback."""

import contextlib
import os
import subprocess
import sys
import time

import pytest
import yaml

from gateway_cli.cluster.errors import ClusterError
from gateway_core.api.key import mint_key


def wait_for_right(kubectl, who):
    """Until the API server's authorizer, which learns of bindings by a watch, knows of this one."""
    ask = ("auth", "can-i", "get", "gatewayaccounts.modelgateway.dev", f"--as={who}")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # a no is an exit code too
        with contextlib.suppress(ClusterError):
            if kubectl(*ask).strip() == "yes":
                return
        time.sleep(0.05)
    raise AssertionError(f"{who} may not read accounts")


@pytest.fixture(scope="module")
def limited(control_plane, tmp_path_factory):
    """A kubeconfig of somebody who may read accounts, and nothing else."""
    kubectl = control_plane.kubectl
    kubectl("create", "serviceaccount", "clerk")
    kubectl("create", "role", "clerk", "--verb=get", "--resource=gatewayaccounts.modelgateway.dev")
    kubectl(
        *("create", "rolebinding", "clerk", "--role=clerk"),
        f"--serviceaccount={control_plane.namespace}:clerk",
    )
    wait_for_right(kubectl, f"system:serviceaccount:{control_plane.namespace}:clerk")
    token = kubectl("create", "token", "clerk").strip()
    config = yaml.safe_load(control_plane.config.cluster_kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    whole = dict(config)
    whole["contexts"] = [*config["contexts"], {**config["contexts"][0], "name": "second"}]
    path = tmp_path_factory.mktemp("clerk") / "config"
    path.write_text(yaml.safe_dump(whole))
    return path, token


@pytest.mark.parametrize(
    ("command", "verb", "resource"),
    [
        (("accounts", "list"), "list", "gatewayaccounts"),
        (("accounts", "set", "acme", "--rpm", "5"), "patch", "gatewayaccounts"),
        (("accounts", "create", "new", "--owner-email", "a@b.c"), "create", "gatewayaccounts"),
        (("keys", "create", "acme"), "list", "secrets"),
        (("keys", "describe", "key-a"), "get", "gatewaykeys"),
        (("usage", "acme"), "list", "gatewayusages"),
    ],
)
def test_missing_right_is_named(gatewayctl, limited, command, verb, resource):
    gatewayctl("apply", "-f", "-", stdin=ACME)
    path, token = limited
    said = gatewayctl("--kubeconfig", path, *command, code=4)
    assert f"you may not {verb} {resource}" in said.refusal
    assert f"`kubectl auth can-i {verb} {resource}" in said.refusal
    assert token not in said.out + said.err


ACME = """
apiVersion: modelgateway.dev/v1alpha1
kind: GatewayAccount
metadata: {name: acme}
spec: {displayName: Acme, owner: {name: Ann, email: ann@example.com}}
"""


def test_context_named_is_used(gatewayctl, limited):
    path, _ = limited
    gatewayctl("apply", "-f", "-", stdin=ACME)
    gatewayctl("--kubeconfig", path, "--context", "second", "accounts", "describe", "acme")
    said = gatewayctl("--kubeconfig", path, "--context", "third", "accounts", "list", code=4)
    assert "third" in said.refusal


def test_similar_names_are_suggested(gatewayctl):
    gatewayctl("apply", "-f", "-", stdin=ACME)
    said = gatewayctl("accounts", "describe", "acmee", code=4)
    assert "did you mean acme?" in said.refusal
    assert "did you mean acme?" in gatewayctl("usage", "acne", code=4).refusal


def test_schema_is_quoted(gatewayctl):
    said = gatewayctl("accounts", "create", "Not_A_Name", "--owner-email", "a@b.c", code=4)
    assert "lowercase" in said.refusal or "RFC 1123" in said.refusal


def test_missing_cluster_explains_how_to_choose_one(gatewayctl, monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    refusal = gatewayctl("accounts", "list", code=4).refusal
    assert "KUBECONFIG" in refusal
    assert ".local/gateway.env" in refusal
    nowhere = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "very-secret"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(nowhere))
    said = gatewayctl("--kubeconfig", tmp_path / "config", "accounts", "list", code=5)
    assert "does not answer" in said.refusal
    assert "very-secret" not in said.err


def test_unknown_credentials_are_explained(gatewayctl, limited, tmp_path):
    config = yaml.safe_load(limited[0].read_text())
    config["users"][0]["user"] = {"token": "stale-token"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    said = gatewayctl("--kubeconfig", tmp_path / "config", "accounts", "list", code=4)
    assert "log in again" in said.refusal
    assert "stale-token" not in said.err


REST = ("--base-url", "http://127.0.0.1:9", "--service", "sim")


def test_api_key_is_read_from_environment_or_file_and_validated_first(
    gatewayctl, monkeypatch, tmp_path
):
    monkeypatch.delenv("GATEWAY_API_KEY", raising=False)
    assert "GATEWAY_API_KEY" in gatewayctl("tasks", "get", "task_a", *REST, code=2).refusal
    key = mint_key().plaintext
    monkeypatch.setenv("GATEWAY_API_KEY", key[:-1])
    said = gatewayctl("tasks", "get", "task_a", *REST, code=2)
    assert "copied" in said.refusal
    assert key[:-1] not in said.err
    path = tmp_path / "key"
    path.write_text(key + "\n")
    monkeypatch.setattr("gateway_cli.rest.client.ATTEMPTS", 1)
    said = gatewayctl("tasks", "get", "task_a", *REST, "--key-file", path, code=5)
    assert key not in said.err
    assert "is not answered" in said.refusal


@pytest.mark.parametrize(
    "options",
    [
        ("--field", "no-equals"),
        ("--input", "/no/such/file"),
        ("--base-url", "ftp://x"),
        ("--timeout", "soon"),
    ],
)
def test_malformed_option_is_a_usage_error(gatewayctl, monkeypatch, options):
    monkeypatch.setenv("GATEWAY_API_KEY", mint_key().plaintext)
    command = ("tasks", "create", "--model", "q4", *REST, *options)
    assert "Traceback" not in gatewayctl(*command, code=2).err


@pytest.mark.full
def test_kubectl_finds_the_plugin_on_its_path(control_plane, gatewayctl):
    gatewayctl("apply", "-f", "-", stdin=ACME)
    scripts = os.path.dirname(sys.executable)
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    kubectl = control_plane.run.kubectl_path
    found = subprocess.run(
        [kubectl, "plugin", "list"], env=env, capture_output=True, text=True, check=False
    )
    assert "kubectl-modelgateway" in found.stdout
    command = [kubectl, "modelgateway", "accounts", "describe", "acme"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "ann@example.com" in done.stdout
    wrong = subprocess.run(
        [*command, "--nothing"], env=env, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "kubectl modelgateway accounts describe" in " ".join(wrong.stderr.split())


@pytest.mark.full
def test_shell_completes_nouns_and_names(gatewayctl, monkeypatch):
    gatewayctl("apply", "-f", "-", stdin=ACME)

    def complete(words):
        env = {
            **os.environ,
            "_GATEWAYCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": f"gatewayctl {words}",
            "COMP_CWORD": str(len(f"gatewayctl {words}".split(" ")) - 1),
        }
        command = [sys.executable, "-m", "gateway_cli"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    assert "accounts" in complete("acc")
    assert "describe" in complete("accounts d")
    # names are there if the cluster answers within two seconds
    deadline = time.monotonic() + 60
    while (names := complete("accounts describe acm")) != ["acme"]:
        assert not names
        assert time.monotonic() < deadline
    # without a cluster there is nothing to complete, and nothing to say
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    assert complete("accounts describe acm") == []
