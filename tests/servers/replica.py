"""Further API, MCP and operator processes beside those of a World, with settings of their own.

Used by the tests of degraded states and of several replicas.
"""

import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from gateway_cli.local.processes import describe_gateway
from tests.servers.control_plane import free_ports
from tests.servers.forking import ForkedServer, start_server
from tests.servers.proxy import Proxy
from tests.servers.world import World

START_SECONDS = 60


class Replica:
    """One more process called `name` on the world's cluster, store and Redis.

    `env` goes before what the world's own process of this name has. As a context manager it is
    started, waited for, and asked to end.
    """

    def __init__(self, world: World, name: str, **env: str) -> None:
        self.name = f"{name}-{secrets.token_hex(4)}"
        free = free_ports()
        ports = replace(
            world.config.ports,
            api=free.api,
            api_health=free.api_health,
            mcp=free.mcp,
            mcp_health=free.mcp_health,
            operator=free.operator,
        )
        config = replace(world.config, ports=ports, extra_env={})
        spec = describe_gateway(name, config, world.run.credentials)
        # every replica has the audience of the world's own
        audience = {"GATEWAY_MCP_URL": world.config.mcp_url}
        self.command, self._env = spec.command, {**spec.env, **audience, **env}
        self.port = ports.of(name)
        self.base_url = f"http://127.0.0.1:{self.port}"
        # probes of the operator are on its one port
        self.health_port = ports.operator if name == "operator" else ports.of(f"{name}_health")
        self.health_url = f"http://127.0.0.1:{self.health_port}"
        self.log = config.log_directory / f"{self.name}.log"
        self._process: ForkedServer | subprocess.Popen[bytes] | None = None
        world.host(self._end)

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.resume()
        self.terminate()
        self.wait_ended()

    def start(self, **env: str) -> None:
        """Starts it, its environment changed by `env`, and waits for nothing."""
        self._process = start_server(self.command, {**self._env, **env}, self.log)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Waits until it is ready; RuntimeError with its log if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if not self.is_alive() or time.monotonic() > deadline:
                text = self.log.read_text(errors="replace")
                raise RuntimeError(f"{self.name} did not start: {text[-2000:]}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.health_url}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_alive(self) -> bool:
        """Whether it runs, or is halted."""
        return self._process is not None and self._process.poll() is None

    def is_halted(self) -> bool:
        """Whether it has been stopped by SIGSTOP, by itself or another."""
        if not self.is_alive():
            return False
        assert self._process is not None
        state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def halt(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)
        self.wait_ended()

    def wait_ended(self, seconds: float = 60) -> int:
        """Waits until it has ended; its exit status."""
        assert self._process is not None
        return self._process.wait(seconds)

    def _end(self) -> None:
        """What a test that failed has left running would work on, and load the machine."""
        if self.is_alive():
            self.kill()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_alive():
            self._process.send_signal(number)


@contextmanager
def run_linked_api(world: World) -> Iterator[tuple[str, Proxy]]:
    """Runs an API process that reaches the Kubernetes API through a proxy; yields both."""
    with Proxy(world.config.ports.kube_apiserver) as link:
        kubeconfig = world.link_kubernetes(link.port)
        with run_api(world, KUBECONFIG=str(kubeconfig)) as base:
            yield base, link
            link.cut()


@contextmanager
def run_api(world: World, **env: str) -> Iterator[str]:
    """Runs an API process on the world's cluster, store and Redis unless `env` says otherwise.

    Yields its base URL once it is ready.
    """
    with Replica(world, "api", **env) as replica:
        yield replica.base_url
