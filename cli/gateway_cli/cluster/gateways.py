"""Namespaces that have a gateway, for commands that find nothing where they look."""

from typing import TYPE_CHECKING

from gateway_cli.cluster.errors import ClusterError, Forbidden, NotThere
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import API_VERSION
from gateway_core.api.provider import GatewayProvider

if TYPE_CHECKING:
    from gateway_cli.cluster.client import Cluster

PART = "app.kubernetes.io/part-of=model-gateway"


class NoGateway(ClusterError):
    """The namespace has no gateway; `others` have one."""

    def __init__(self, namespace: str, others: list[str]) -> None:
        names = ", ".join(others)
        self.where = f"these namespaces have one: {names}" if others else "no other is known"
        super().__init__(f"there is no gateway in the namespace {namespace}; {self.where}")
        self.others = others


async def require_gateway(cluster: "Cluster") -> None:
    """Raise NoGateway where nothing in the namespace is of a gateway; name the namespaces with one.

    A gateway is known by its Deployments and pods, or by its providers and accounts. Credentials
    that may not list all of these cannot tell that there is none.
    """
    try:
        if await _list_gateways(cluster, f"/namespaces/{cluster.namespace}"):
            return
    except Forbidden:
        return
    try:
        others = await _list_gateways(cluster, "")
    except Forbidden:
        others = []
    raise NoGateway(cluster.namespace, others)


async def _list_gateways(cluster: "Cluster", below: str) -> list[str]:
    own = f"/apis/{API_VERSION}{below}"
    found = set[str]()
    for path, labels in (
        (f"/apis/apps/v1{below}/deployments", PART),
        (f"/api/v1{below}/pods", PART),
        (f"{own}/{GatewayProvider.plural}", ""),
        (f"{own}/{GatewayAccount.plural}", ""),
    ):
        try:
            answer = await cluster.call("GET", path, query={"labelSelector": labels})
        except NotThere:
            # no such kind in this cluster
            continue
        found |= {item["metadata"]["namespace"] for item in answer.get("items") or ()}
    return sorted(found)
