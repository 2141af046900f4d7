"""Secrets of the namespace."""

import base64
from collections.abc import Mapping
from urllib.parse import quote

from gateway_cli.cluster import FIELD_MANAGER
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import AlreadyThere, ClusterError, NotThere
from gateway_core.api.resource import Object


async def get_secret(cluster: Cluster, name: str) -> Object:
    """Return a Secret. NotThere."""
    try:
        return await cluster.call("GET", _locate(cluster, name))
    except NotThere:
        text = f"there is no Secret {name} in namespace {cluster.namespace}"
        raise NotThere(text) from None


async def read_secret(cluster: Cluster, name: str, key: str) -> bytes:
    """Return an entry of a Secret. ClusterError if it has none of that name."""
    data = (await get_secret(cluster, name)).get("data") or {}
    if key not in data:
        raise ClusterError(
            f"Secret {name} has no key {key}; it has {', '.join(sorted(data)) or 'none'}"
        )
    return base64.b64decode(data[key])


async def list_secrets(cluster: Cluster, labels: Mapping[str, str]) -> list[Object]:
    """Return all Secrets that have those labels."""
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    listed = await cluster.call("GET", _locate(cluster), query={"labelSelector": selector})
    return list[Object](listed["items"])


async def create_secret(
    cluster: Cluster, name: str, content: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """Create a Secret. AlreadyThere."""
    body = {
        "metadata": {"name": name, "labels": dict(labels)},
        "type": "Opaque",
        "stringData": dict(content),
    }
    query = {"fieldManager": FIELD_MANAGER}
    await cluster.retry(lambda: cluster.call("POST", _locate(cluster), body, query))


async def ensure_secret(
    cluster: Cluster, name: str, content: Mapping[str, str], labels: Mapping[str, str]
) -> bool:
    """Create a Secret unless there is one, which is not read; return whether it did."""
    try:
        await create_secret(cluster, name, content, labels)
    except AlreadyThere:
        return False
    return True


async def delete_secret(cluster: Cluster, name: str) -> None:
    """Delete a Secret. NotThere."""
    await cluster.call("DELETE", _locate(cluster, name))


def _locate(cluster: Cluster, name: str = "") -> str:
    path = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    return f"{path}/{quote(name, safe='')}" if name else path
