"""The composition root of `gatewayctl`'s cluster commands: the only one to name an adapter."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from gateway_cli.install.cluster import ClusterApi
from gateway_core.adapters.kube.connection import NoCluster as NoCluster
from gateway_core.adapters.kube.connection import find_connection

CALL_SECONDS = 20.0
CONNECT_SECONDS = 5.0


@asynccontextmanager
async def open_cluster(namespace: str | None) -> AsyncIterator[ClusterApi]:
    """The cluster of $KUBECONFIG or of this pod; `namespace` None means the configuration's own.

    Raises:
        NoCluster: no configuration names a cluster.
    """
    connection = await asyncio.to_thread(find_connection)
    ssl_context = await asyncio.to_thread(connection.build_ssl)
    token = connection.read_token()
    async with aiohttp.ClientSession(
        base_url=connection.server,
        connector=aiohttp.TCPConnector(ssl=ssl_context or True),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS),
    ) as session:
        yield ClusterApi(session, namespace or connection.namespace or "default")
