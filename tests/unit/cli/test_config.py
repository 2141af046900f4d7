"""The ports of a local run: defaults, changes, and the refusal of busy ones."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway_cli.local.config import PORT_NAMES, LocalRunError, Ports, check_ports, read_config
from gateway_cli.local.processes import describe_gateway, list_listeners, list_processes
from gateway_cli.local.state import ensure_credentials, ensure_shared_secrets
from tests.servers.control_plane import free_ports


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_defaults_differ_and_are_below_the_ports_of_clients() -> None:
    ports = [Ports().of(name) for name in PORT_NAMES]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768


def test_block_is_in_the_order_of_the_fields() -> None:
    ports = Ports.block(9000)
    assert [ports.of(name) for name in PORT_NAMES] == list(range(9000, 9013))


@pytest.mark.parametrize("base", [0, 80, 65530])
def test_block_outside_the_range_is_refused(base: int) -> None:
    with pytest.raises(LocalRunError, match="port base"):
        Ports.block(base)


def test_variable_beats_the_block() -> None:
    ports = Ports.from_environment({"GATEWAY_LOCAL_PORT_KUBE_APISERVER": "7443"}, 9000)
    assert ports == replace(Ports.block(9000), kube_apiserver=7443)


@pytest.mark.parametrize("text", ["http", "-1", "0", "65536", "80.5"])
def test_variable_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(LocalRunError, match="GATEWAY_LOCAL_PORT_API"):
        Ports.from_environment({"GATEWAY_LOCAL_PORT_API": text})


def test_several_api_processes_share_the_port_and_have_health_ports_of_their_own(
    tmp_path: Path,
) -> None:
    config = read_config({"GATEWAY_LOCAL_DIR": str(tmp_path)}, port_base=9000, workers=3)
    ensure_shared_secrets(config.secrets_directory)
    credentials = ensure_credentials(tmp_path / "credentials.json", config.secrets_directory)
    names = [name for name in list_processes(config) if name.startswith("api")]
    assert names == ["api", "api-2", "api-3"]
    variables = [describe_gateway(name, config, credentials).env for name in names]
    assert [env["GATEWAY_HEALTH_PORT"] for env in variables] == ["9009", "9013", "9014"]
    shared = {
        "GATEWAY_API_PORT": "9000",
        "GATEWAY_REUSE_PORT": "true",
        "GATEWAY_REPLICAS": "3",
    }
    assert all(shared.items() <= env.items() for env in variables)
    listeners = [port for name in list_processes(config) for port in list_listeners(name)]
    assert len({config.ports.of(name) for name in listeners}) == len(listeners)


def test_busy_port_names_port_process_and_way_out(taken: int) -> None:
    ports = replace(free_ports(), redis=taken)
    with pytest.raises(LocalRunError) as caught:
        check_ports(ports, PORT_NAMES)
    text = str(caught.value)
    assert f"port {taken}, wanted by redis" in text
    assert "GATEWAY_LOCAL_PORT_REDIS" in text
    assert "--port-base" in text


def test_busy_port_of_a_process_that_is_not_started_does_not_matter(taken: int) -> None:
    check_ports(replace(free_ports(), redis=taken), ["etcd", "api"])


def test_two_processes_on_one_port_are_refused() -> None:
    free = free_ports()
    with pytest.raises(LocalRunError, match="both media and api"):
        check_ports(replace(free, api=free.media), ["media", "api"])


@pytest.mark.parametrize("env", [{}, {"KUBECONFIG": "/nowhere/config"}])
def test_cluster_of_a_kubeconfig_needs_its_file(env: dict[str, str]) -> None:
    with pytest.raises(LocalRunError, match=repr(env.get("KUBECONFIG", ""))):
        read_config(env, use_kubeconfig=True)
