"""A local run in the background, on ports of its own; a control plane without the gateway.

The control plane is for tests of the schemas and of what talks to the Kubernetes API; `world` has
all the processes. The workers of a run share one, and have a namespace each.
"""

import asyncio
import inspect
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Self, TypeVar

from gateway_cli.local.config import PORT_NAMES, LocalConfig, Ports, is_busy
from gateway_cli.local.processes import CONTROL_PLANE
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Connection
from gateway_core.kube.kubeconfig import find_connection
from tests.servers.forking import ROOT, ForkingSupervisor

_T = TypeVar("_T")
_DRAWS = 5_000
CALL_SECONDS = 60.0
"""Time limit of a test's own Kubernetes call, on a machine that may stand still."""
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


class ForkingRun(LocalRun):
    """A local run whose own processes are forked."""

    supervisor_class = ForkingSupervisor


class BackgroundRun:
    """All of `LocalRun` and its supervisor, coroutines blocking; a context manager for any thread.

    The run has a thread and an event loop of its own, and continues while those of tests come and
    go. The processes live as long as the thread.
    """

    def __init__(self, config: LocalConfig, reporter: Reporter | None = None) -> None:
        self.run = ForkingRun(config, reporter)
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
            self._await(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _stop(self) -> None:
        supervisor = self.run.supervisor
        for name in reversed(supervisor.names):
            # nothing that it wrote is kept, and its orderly end takes seconds
            if name in CONTROL_PLANE and supervisor.is_alive(name):
                os.kill(supervisor.pid_of(name), signal.SIGKILL)
            await supervisor.stop(name)
        await self.run.stop()

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class ControlPlane:
    """A control plane and a namespace on it; `with` starts it and ends it with all it wrote.

    With `lent`, the settings of one that runs already, only the namespace is its own.
    """

    def __init__(self, lent: LocalConfig | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-control-plane-")
        folder = Path(self._folder.name)
        place = {"ports": free_ports()} if lent is None else join(lent, folder)
        self.config = LocalConfig(
            root=ROOT,
            directory=folder,
            first_objects=False,
            restart=False,
            sync_to_disk=False,
            **place,
        )
        self.run = BackgroundRun(self.config)

    def __enter__(self) -> Self:
        try:
            self.run.start(*CONTROL_PLANE)
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
        return KubernetesClient(self.connection, self.namespace, call_seconds=CALL_SECONDS)

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints; ClusterError if it fails."""
        return self.run.kubectl(*arguments)


def join(lent: LocalConfig, folder: Path) -> dict[str, Any]:
    """Return the settings of a run that has a namespace of its own on a control plane."""
    namespace, own = f"gateway-{secrets.token_hex(4)}", lent.ports
    kubeconfig = folder / "kubeconfig"
    # the control plane's own names another namespace
    copy_kubeconfig(lent.cluster_kubeconfig, kubeconfig, lent.namespace, namespace)
    ports = replace(free_ports(), kube_apiserver=own.kube_apiserver, etcd=own.etcd)
    return {"ports": ports, "kubeconfig": kubeconfig, "namespace": namespace}


def copy_kubeconfig(source: Path, target: Path, old: str, new: str) -> None:
    """Write a kubeconfig in which `new` takes the place of `old`."""
    text = source.read_text()
    assert old in text
    target.write_text(text.replace(old, new))
    target.chmod(0o600)


class Lender:
    """Lends one control plane to all workers of a run of tests.

    It belongs to the controller of pytest-xdist, and starts the control plane for the first worker
    that asks, so that a run which needs none has none.
    """

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._lock = threading.Lock()
        self._owned: ControlPlane | None = None
        threading.Thread(target=self._lend, name="lender of the control plane", daemon=True).start()

    @property
    def address(self) -> str:
        """The socket at which `borrow` asks."""
        return str(self._listener.address)

    def close(self) -> None:
        """End the control plane, after the last worker."""
        self._listener.close()
        with self._lock:
            if self._owned is not None:
                self._owned.__exit__()

    def _lend(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            with connection, self._lock, suppress(OSError):
                try:
                    self._owned = self._owned or ControlPlane().__enter__()
                    connection.send(self._owned.config)
                except Exception as error:  # the worker raises it
                    connection.send(RuntimeError(f"there is no control plane: {error}"))


def borrow(address: str) -> LocalConfig:
    """Return the settings of the control plane that the lender at `address` has. RuntimeError."""
    with Client(address, family="AF_UNIX") as connection:
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    config: LocalConfig = answer
    return config
