"""A local run in the background, on ports of its own; a control plane without the gateway.

The control plane is for tests of the schemas and of what talks to the Kubernetes API; `world` has
all the processes.
"""

import asyncio
import inspect
import secrets
import socket
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from gateway_cli.local.config import PORT_NAMES, LocalConfig, Ports, is_busy
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Connection
from gateway_core.kube.kubeconfig import find_connection

ROOT = Path(__file__).resolve().parents[2]
_T = TypeVar("_T")
_DRAWS = 5_000
_reserved: list[socket.socket] = []


def free_ports() -> Ports:
    """A block without listeners, reserved for this process for as long as it lives.

    Below the range that systems hand out to clients, so that a port stays free over a restart.
    """
    for _ in range(_DRAWS):
        base = 20_000 + 16 * secrets.randbelow(625)
        # TCP does not notice a UDP socket, other test processes that choose ports do
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with suppress(OSError):
            mark.bind(("127.0.0.1", base))
            ports = Ports.block(base)
            if not any(is_busy(ports.of(name)) for name in PORT_NAMES):
                _reserved.append(mark)
                return ports
        mark.close()
    raise RuntimeError("no block of ports is free")


class BackgroundRun:
    """All of `LocalRun` and its supervisor, coroutines blocking; a context manager for any thread.

    The run has a thread and an event loop of its own, and continues while those of tests come and
    go. The processes live as long as the thread.
    """

    def __init__(self, config: LocalConfig, reporter: Reporter | None = None) -> None:
        self.run = LocalRun(config, reporter)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="local run", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        owner = self.run if hasattr(self.run, name) else self.run.supervisor
        attribute = getattr(owner, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute
        return lambda *arguments: self._await(attribute(*arguments))

    def stop_process(self, name: str) -> None:
        """Ends one process, which is not restarted."""
        self._await(self.run.supervisor.stop(name))

    def close(self) -> None:
        """Ends all processes and the thread."""
        if self._loop.is_closed():
            return
        try:
            self._await(self.run.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class ControlPlane:
    """One control plane; `with` starts it and ends it with all it wrote."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-control-plane-")
        self.config = LocalConfig(
            root=ROOT,
            directory=Path(self._folder.name),
            ports=free_ports(),
            first_objects=False,
            restart=False,
            sync_to_disk=False,
        )
        self.run = BackgroundRun(self.config)

    def __enter__(self) -> Self:
        try:
            self.run.start("etcd", "kube-apiserver")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run.close()
        self._folder.cleanup()

    @property
    def namespace(self) -> str:
        """Where the objects are."""
        return self.config.namespace

    @property
    def connection(self) -> Connection:
        """How to reach it."""
        return find_connection(self.config.cluster_kubeconfig)

    def kube(self) -> KubernetesClient:
        """The project's own client; an asynchronous context manager."""
        return KubernetesClient(self.connection, self.namespace)

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints; ClusterError if it fails."""
        return self.run.kubectl(*arguments)
