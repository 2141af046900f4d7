"""The composition root of `gatewayctl`'s cluster commands: the only one to name an adapter."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from gateway_cli.admin.objects import GatewayObjects
from gateway_cli.cluster.calls import ClusterCalls
from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.selection import SELECTED
from gateway_cli.install.cluster import PATIENCE_SECONDS, ClusterApi
from gateway_core.adapters.kube.connection import NoCluster, find_connection
from gateway_core.adapters.secretfiles import SecretsUnusable, load_key, load_peppers

CALL_SECONDS = 20.0
CONNECT_SECONDS = 5.0


@asynccontextmanager
async def open_cluster(
    namespace: str | None, patience: float = PATIENCE_SECONDS
) -> AsyncIterator[ClusterApi]:
    """The cluster for what installs; see `open_calls`."""
    async with open_calls(namespace) as calls:
        yield ClusterApi(calls, patience)


@asynccontextmanager
async def open_objects(
    namespace: str | None, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[GatewayObjects]:
    """The gateway's objects, for admins; see `open_calls`."""
    async with open_calls(namespace, call_seconds) as calls:
        yield GatewayObjects(calls)


@asynccontextmanager
async def open_calls(
    namespace: str | None, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[ClusterCalls]:
    """The cluster selected, of $KUBECONFIG or of this pod.

    `namespace` None means the configuration's own.

    Raises:
        ClusterError: no configuration names a cluster.
    """
    selected = SELECTED.get()
    try:
        connection = await asyncio.to_thread(find_connection, selected.kubeconfig, selected.context)
        ssl_context = await asyncio.to_thread(connection.build_ssl)
        token = connection.read_token()
    except NoCluster as error:
        raise ClusterError(str(error)) from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"the credentials of the cluster cannot be used: {error}") from error
    async with aiohttp.ClientSession(
        base_url=connection.server,
        connector=aiohttp.TCPConnector(ssl=ssl_context or True),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=aiohttp.ClientTimeout(total=call_seconds, sock_connect=CONNECT_SECONDS),
    ) as session:
        yield ClusterCalls(session, namespace or connection.namespace or "default")


def read_key_files(folder: Path) -> tuple[bytes, Mapping[int, bytes]]:
    """The id key, and the peppers by version, of a folder as the processes have it.

    Raises:
        ClusterError: one is missing or malformed.
    """
    try:
        return load_key(folder, "id-key"), load_peppers(folder)
    except SecretsUnusable as error:
        raise ClusterError(str(error)) from error
