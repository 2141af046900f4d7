"""What the processes of a local run are: their commands, environments, ready checks and order."""

import sys
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.controlplane.binaries import ControlPlaneBinaries
from gateway_cli.local.config import MODERATION_MODEL, LocalConfig
from gateway_cli.local.pki import ClusterKeys
from gateway_cli.local.ports import LOOPBACK
from gateway_cli.local.process import ProcessSpec
from gateway_cli.local.readiness import answers_ok, apiserver_answers, redis_answers
from gateway_cli.local.state import Credentials

CONTROL_PLANE = ("etcd", "kube-apiserver")
BACKENDS = ("redis", "media", "simulator")
GATEWAY = ("operator", "api")
PROCESSES: tuple[str, ...] = (*CONTROL_PLANE, *BACKENDS, *GATEWAY)

S3 = "s3"
"""The S3 server, a backend of those runs alone that keep their bytes there."""

LISTENERS = {
    "etcd": ("etcd", "etcd_peer"),
    "kube-apiserver": ("kube_apiserver",),
    "redis": ("redis",),
    "media": ("media", "media_health"),
    "simulator": ("simulator",),
    "operator": ("operator",),
    "api": ("api", "api_health"),
    "s3": ("s3",),
}
"""Process to the ports it listens on, by their names in `Ports`."""

LOOPBACK_CIDRS = "127.0.0.0/8,::1/128"

_Parts = tuple[tuple[str, ...], dict[str, str], str]
# module and arguments, environment, URL that answers 200 when ready


def describe_etcd(
    config: LocalConfig, binaries: ControlPlaneBinaries, env: Mapping[str, str]
) -> ProcessSpec:
    """Etcd with one member."""
    client = f"http://{LOOPBACK}:{config.ports.etcd}"
    peer = f"http://{LOOPBACK}:{config.ports.etcd_peer}"
    command = [
        str(binaries.etcd),
        "--name=local",
        f"--data-dir={config.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
    ]
    if not config.sync_to_disk:
        command.append("--unsafe-no-fsync")
    return ProcessSpec("etcd", tuple(command), env, answers_ok(f"{client}/health"))


def describe_apiserver(
    config: LocalConfig, binaries: ControlPlaneBinaries, keys: ClusterKeys, env: Mapping[str, str]
) -> ProcessSpec:
    """Kube-apiserver on loopback, with RBAC and a client certificate for its admin."""
    command = (
        str(binaries.kube_apiserver),
        f"--etcd-servers=http://{LOOPBACK}:{config.ports.etcd}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={config.ports.kube_apiserver}",
        f"--tls-cert-file={keys.certificate('apiserver')}",
        f"--tls-private-key-file={keys.key('apiserver')}",
        f"--client-ca-file={keys.ca}",
        "--anonymous-auth=false",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={keys.service_account_public_key}",
        f"--service-account-signing-key-file={keys.key('service-account')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        # an endpoint on loopback is refused by its own validation, over and over
        "--endpoint-reconciler-type=none",
    )
    url = f"https://{LOOPBACK}:{config.ports.kube_apiserver}"
    check = apiserver_answers(url, keys.ca, keys.certificate("admin"), keys.key("admin"))
    return ProcessSpec(
        "kube-apiserver", command, env, check, ready_timeout_seconds=90, grace_seconds=15
    )


def describe_redis(config: LocalConfig, program: Path, env: Mapping[str, str]) -> ProcessSpec:
    """Redis without persistence: nothing in it is durable."""
    command = (
        *(str(program), "--bind", LOOPBACK, "--port", str(config.ports.redis)),
        *("--save", "", "--appendonly", "no", "--dir", str(config.directory / "redis")),
    )
    return ProcessSpec("redis", command, env, redis_answers(LOOPBACK, config.ports.redis))


def describe_gateway(
    name: str, config: LocalConfig, credentials: Credentials, env: Mapping[str, str]
) -> ProcessSpec:
    """One of the gateway's own processes or the simulator, as a module of this interpreter."""
    arguments, own_env, ready = {
        "simulator": _simulator,
        "media": _media,
        "operator": _operator,
        "api": _api,
    }[name](config, credentials)
    command = (sys.executable, "-m", *arguments)
    # a log must show what a process wrote before it was killed
    whole = {**env, "PYTHONUNBUFFERED": "1", **own_env}
    # an operator may be in the middle of calls whose outcome nobody else could tell
    grace = 25.0 if name == "operator" else 10.0
    return ProcessSpec(name, command, whole, answers_ok(ready), grace_seconds=grace)


def _simulator(config: LocalConfig, credentials: Credentials) -> _Parts:
    env = {
        "GATEWAY_SIMULATOR_HOST": LOOPBACK,
        "GATEWAY_SIMULATOR_PORT": str(config.ports.simulator),
        "GATEWAY_SIMULATOR_TOKEN": credentials.provider_token,
        "GATEWAY_SIMULATOR_STATE_DIR": str(config.directory / "simulator"),
    }
    return ("gateway_simulator",), env, f"{config.simulator_url}/healthz"


def _media(config: LocalConfig, credentials: Credentials) -> _Parts:
    env = {
        "GATEWAY_MEDIA_HOST": LOOPBACK,
        "GATEWAY_MEDIA_PORT": str(config.ports.media),
        "GATEWAY_MEDIA_URL": config.media_url,
        **_health_env(config.ports.media_health),
    }
    url = f"http://{LOOPBACK}:{config.ports.media_health}"
    return ("gateway_apiserver", "media"), env, f"{url}/readyz"


def _operator(config: LocalConfig, credentials: Credentials) -> _Parts:
    env = {
        "GATEWAY_MEDIA_URL": config.media_url,
        "GATEWAY_NOTIFY_URL": config.base_url,
        **_health_env(config.ports.operator),
    }
    url = f"http://{LOOPBACK}:{config.ports.operator}"
    return ("gateway_operator",), {**_cluster_env(config), **env}, f"{url}/readyz"


def _api(config: LocalConfig, credentials: Credentials) -> _Parts:
    env = {
        "GATEWAY_API_HOST": LOOPBACK,
        "GATEWAY_API_PORT": str(config.ports.api),
        "GATEWAY_BASE_URL": config.base_url,
        "GATEWAY_MEDIA_URL": config.media_url,
        "GATEWAY_OPERATOR_URL": f"http://{LOOPBACK}:{config.ports.operator}",
        "GATEWAY_MODERATION_DEFAULT_MODEL": MODERATION_MODEL,
        **_health_env(config.ports.api_health),
    }
    url = f"http://{LOOPBACK}:{config.ports.api_health}"
    return ("gateway_apiserver", "api"), {**_cluster_env(config), **env}, f"{url}/readyz"


def _health_env(port: int) -> dict[str, str]:
    """Where a process serves its probes and metrics."""
    return {"GATEWAY_HEALTH_HOST": LOOPBACK, "GATEWAY_HEALTH_PORT": str(port)}


def _cluster_env(config: LocalConfig) -> dict[str, str]:
    return {
        "KUBECONFIG": str(config.cluster_kubeconfig),
        "GATEWAY_REDIS_URL": f"redis://{LOOPBACK}:{config.ports.redis}/0",
        # only here may receivers, sources and outputs be on loopback
        "GATEWAY_CALLBACK_ALLOWED_CIDRS": LOOPBACK_CIDRS,
        "GATEWAY_FETCH_ALLOWED_CIDRS": LOOPBACK_CIDRS,
    }
