"""Prepares a cluster for the gateway through kubectl: namespace, CRDs, first objects.

The same for the run's own control plane and for a cluster that KUBECONFIG names.
"""

import asyncio
import ipaddress
import os
import time
import urllib.parse
from collections.abc import Iterable
from pathlib import Path

from gateway_cli.local.errors import ClusterError

APPLY_TIMEOUT_SECONDS = 30.0
_NOT_YET_SERVED = ("no matches for kind", "could not find the requested resource", "not found")


class Cluster:
    """A cluster as its admin sees it."""

    def __init__(self, kubectl: Path, kubeconfig: Path, namespace: str) -> None:
        self.kubectl = kubectl
        self._kubeconfig = kubeconfig
        self._namespace = namespace

    async def run(self, *arguments: str) -> str:
        """What kubectl prints, in the run's namespace.

        Raises:
            ClusterError: if it fails; the text is what it says.
        """
        process = await asyncio.create_subprocess_exec(
            str(self.kubectl),
            f"--kubeconfig={self._kubeconfig}",
            f"--namespace={self._namespace}",
            *arguments,
            env=dict(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
        if process.returncode != 0:
            text = errors.decode(errors="replace").strip()
            raise ClusterError(f"kubectl {arguments[0]}: {text or process.returncode}")
        return output.decode()

    async def apply(self, files: Iterable[Path]) -> None:
        """Applies files in one server-side apply, waiting for kinds that are not served yet.

        Raises:
            ClusterError: if an object is refused.
        """
        arguments = [f"--filename={path}" for path in files]
        deadline = time.monotonic() + APPLY_TIMEOUT_SECONDS
        while True:
            try:
                await self.run(
                    "apply",
                    "--server-side",
                    "--force-conflicts",
                    "--field-manager=gatewayctl",
                    *arguments,
                )
            except ClusterError as error:
                waits = any(text in str(error) for text in _NOT_YET_SERVED)
                if not waits or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    async def wait_established(self, crds: Iterable[Path]) -> None:
        """Waits until the kinds of the CRD files are served."""
        files = [f"--filename={path}" for path in crds]
        limit = f"--timeout={APPLY_TIMEOUT_SECONDS:.0f}s"
        await self.run("wait", "--for=condition=Established", limit, *files)

    async def refuse_remote(self) -> None:
        """Refuses a cluster that is not on this machine.

        Raises:
            ClusterError: if its server's host is neither `localhost` nor a loopback address.
        """
        template = "jsonpath={.clusters[0].cluster.server}"
        server = await self.run("config", "view", "--minify", f"--output={template}")
        if not is_loopback(server):
            raise ClusterError(
                f"{self._kubeconfig} names {server}, which is not on this machine; the local run "
                "would write CRDs and objects there. --allow-remote-cluster says that it may"
            )


def is_loopback(server: str) -> bool:
    """Whether the host of the URL `server` is this machine's loopback."""
    host = urllib.parse.urlsplit(server).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
