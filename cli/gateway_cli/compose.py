"""The composition root of `gatewayctl`: the only module that names adapters."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.session import SELECTED
from gateway_core.kube.client import KubeRecords
from gateway_core.kube.connection import NoCluster, find_connection
from gateway_core.kube.secrets import SecretsUnusable, load_key, load_peppers

CALL_SECONDS = 20.0


@asynccontextmanager
async def open_cluster(
    namespace: str | None,
    *,
    patience: float = 0.0,
    call_seconds: float = CALL_SECONDS,
    kubeconfig: Path | None = None,
) -> AsyncIterator[Cluster]:
    """The cluster of `kubeconfig`, else the one selected, of $KUBECONFIG or of this pod.

    `namespace` None is the configuration's own; `patience` as in `Cluster`.

    Raises:
        ClusterError: no configuration names a cluster, or its credentials cannot be read.
    """
    selected = SELECTED.get()
    chosen = (kubeconfig, None) if kubeconfig else (selected.kubeconfig, selected.context)
    async with AsyncExitStack() as stack:
        try:
            connection = await asyncio.to_thread(find_connection, *chosen)
            connection.read_token()
            namespace = namespace or connection.namespace or "default"
            records = await stack.enter_async_context(
                KubeRecords(connection, namespace, call_seconds=call_seconds)
            )
        except NoCluster as error:
            raise ClusterError(str(error)) from error
        except (OSError, ValueError) as error:
            raise ClusterError(f"the credentials of the cluster cannot be used: {error}") from error
        yield Cluster(records, namespace, connection.server, patience)


def read_key_files(folder: Path) -> tuple[bytes, Mapping[int, bytes]]:
    """The id key, and the peppers by version, of a folder as the processes have it.

    Raises:
        ClusterError: one is missing or malformed.
    """
    try:
        return load_key(folder, "id-key"), load_peppers(folder)
    except SecretsUnusable as error:
        raise ClusterError(str(error)) from error
