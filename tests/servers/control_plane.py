"""A real etcd and kube-apiserver with the gateway's CRDs and nothing else, on loopback.

For tests of the schemas and of what talks to the Kubernetes API; `world` has all the processes.
"""

import tempfile
from pathlib import Path
from typing import Self

from gateway_cli.local.config import LocalConfig, Ports
from gateway_cli.local.run import BackgroundRun
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.connection import Connection, load_kubeconfig

ROOT = Path(__file__).resolve().parents[2]


class ControlPlane:
    """One control plane; `with` starts it and ends it with all it wrote."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gateway-control-plane-")
        self.config = LocalConfig(
            root=ROOT,
            directory=Path(self._folder.name),
            ports=Ports.free(),
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
        return load_kubeconfig(self.config.cluster_kubeconfig)

    def kube(self) -> KubernetesClient:
        """The project's own client; an asynchronous context manager."""
        return KubernetesClient(self.connection, self.namespace)

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints; ClusterError if it fails."""
        return self.run.kubectl(*arguments)
