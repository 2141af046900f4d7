"""Another API process beside those of a World, with settings of its own.

Used by the integration tests.
"""

import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gateway_cli.local.ports import Ports
from gateway_cli.local.processes import describe_gateway
from tests.servers.proxy import Proxy
from tests.servers.world import ROOT, World

START_SECONDS = 30


def _write_kubeconfig(world: World, port: int) -> Path:
    """The world's kubeconfig with another port of loopback, such as a proxy's."""
    original = world.config.cluster_kubeconfig
    own = f":{world.config.ports.kube_apiserver}"
    path = original.with_name(f"kubeconfig-{port}")
    path.write_text(original.read_text().replace(own, f":{port}"))
    path.chmod(0o600)
    return path


@contextmanager
def run_linked_api(world: World) -> Iterator[tuple[str, Proxy]]:
    """Runs an API process that reaches the Kubernetes API through a proxy; yields both."""
    with Proxy(world.config.ports.kube_apiserver) as link:
        kubeconfig = _write_kubeconfig(world, link.port)
        with run_api(world, KUBECONFIG=str(kubeconfig)) as base:
            yield base, link
            link.cut()


@contextmanager
def run_api(world: World, **env: str) -> Iterator[str]:
    """Runs an API process on the world's cluster, store and Redis unless `env` says otherwise.

    Yields its base URL once it is ready.
    """
    config = replace(
        world.config, ports=replace(world.config.ports, api=Ports.free().api), extra_env={}
    )
    own = {
        "GATEWAY_LOG_FORMAT": "console",
        **os.environ,
        "GATEWAY_NAMESPACE": config.namespace,
        "GATEWAY_SECRETS_DIR": str(config.secrets_directory),
        "GATEWAY_STORE_DIR": str(config.store_directory),
    }
    spec = describe_gateway("api", config, world.run.run.credentials, own)
    log = config.log_directory / f"api-{secrets.token_hex(4)}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            spec.command,
            env={**spec.env, **env},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(config.base_url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield config.base_url
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
