"""What the environment and the secrets folder may hold."""

import base64
from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway_apiserver.settings import ApiSettings
from gateway_core.kube.secrets import SecretsUnusable, load_key, load_peppers


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("GATEWAY_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("GATEWAY_STORE_DIR", str(tmp_path))
    return monkeypatch


def read() -> ApiSettings:
    return ApiSettings()


def test_defaults_of_a_bare_environment(env: pytest.MonkeyPatch) -> None:
    settings = read()
    assert (settings.api_host, settings.api_port) == ("127.0.0.1", 8080)
    assert settings.namespace == "model-gateway"
    assert settings.callback_allowed_cidrs == settings.fetch_allowed_cidrs == ()
    assert settings.maintenance is False
    assert settings.task_id_header == "X-Task-Id"
    assert (settings.replicas, settings.reuse_port) == (1, False)


def test_networks_are_a_comma_list(env: pytest.MonkeyPatch) -> None:
    env.setenv("GATEWAY_CALLBACK_ALLOWED_CIDRS", "127.0.0.0/8, ::1/128,")
    loopback = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert read().callback_allowed_cidrs == loopback
    assert read().fetch_allowed_cidrs == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_PORT", "0"),
        ("FETCH_ALLOWED_CIDRS", "nonsense"),
        ("CALLBACK_ALLOWED_CIDRS", "10.0.0.1/8"),
        ("TASK_ID_HEADER", "X Task"),
        ("REPLICAS", "0"),
        ("LOG_FORMAT", "xml"),
        ("MAINTENANCE", "perhaps"),
    ],
)
def test_bad_values_are_refused(env: pytest.MonkeyPatch, name: str, value: str) -> None:
    env.setenv(f"GATEWAY_{name}", value)
    with pytest.raises(ValidationError):
        read()


def test_several_peppers(tmp_path: Path) -> None:
    for version in (1, 2, 10):
        text = base64.urlsafe_b64encode(bytes([version]) * 32)
        (tmp_path / f"pepper-{version}").write_bytes(text + b"\n")
    (tmp_path / "pepper-old").write_text("ignored")
    assert load_peppers(tmp_path) == {n: bytes([n]) * 32 for n in (1, 2, 10)}


def test_unusable_secrets_are_named_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SecretsUnusable, match="pepper-1"):
        load_peppers(tmp_path)
    with pytest.raises(SecretsUnusable, match="id-key"):
        load_key(tmp_path, "id-key")
    (tmp_path / "id-key").write_text("c2hvcnQ=")
    with pytest.raises(SecretsUnusable) as caught:
        load_key(tmp_path, "id-key")
    assert "short" not in str(caught.value)
    assert "c2hvcnQ" not in str(caught.value)
