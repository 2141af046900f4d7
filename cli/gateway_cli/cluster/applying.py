"""Objects of any kind, applied on the server."""

from collections.abc import Callable

from gateway_cli.cluster import FIELD_MANAGER
from gateway_cli.cluster.client import APPLY_PATCH, Cluster, retry_conflicts
from gateway_cli.cluster.errors import Forbidden, NotServed, NotThere, refuse_removed
from gateway_core.api.resource import Object


async def apply(
    cluster: Cluster, obj: Object, adapt: Callable[[Object | None], Object] | None = None
) -> str:
    """Apply on the server: make or change the fields given, leave all others.

    Return what this did: `created`, `updated` or `unchanged`; `applied` for credentials that may
    not read the object.

    With `adapt`, what it makes of the object that is there (or None) is applied in place of `obj`;
    if that names the version that it was made of, it is made anew after a change.

    Raises:
        ClusterError: it is refused, or the kind is not served in time.
    """

    async def send() -> str:
        path = f"{await _find_path(cluster, obj)}/{obj['metadata']['name']}"

        async def attempt() -> str:
            before, may_read = None, True
            try:
                before = await _find(cluster, path)
            except Forbidden:
                if adapt:
                    raise
                may_read = False
            wanted = adapt(before) if adapt else obj
            query = {"fieldManager": FIELD_MANAGER, "force": "true"}
            after = await cluster.call("PATCH", path, wanted, query, APPLY_PATCH)
            refuse_removed(after)
            if before is None:
                return "created" if may_read else "applied"
            versions = {each["metadata"].get("resourceVersion") for each in (before, after)}
            return "unchanged" if len(versions) == 1 else "updated"

        return await retry_conflicts(f"{obj['kind']} {obj['metadata']['name']}", attempt)

    return await cluster.retry(send)


async def _find(cluster: Cluster, path: str) -> Object | None:
    try:
        return await cluster.call("GET", path)
    except NotThere:
        return None


async def _find_path(cluster: Cluster, obj: Object) -> str:
    """Return the path of the collection of `obj`, by the API server's discovery."""
    group, kind, known = str(obj["apiVersion"]), str(obj["kind"]), cluster.resources
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    if (group, kind) not in known:
        listed = await cluster.call("GET", root)
        for resource in listed.get("resources") or ():
            if "/" not in resource["name"]:
                known[group, resource["kind"]] = resource["name"], bool(resource["namespaced"])
    if (group, kind) not in known:
        raise NotServed(f"the cluster serves no {kind} in {group}")
    plural, namespaced = known[group, kind]
    if not namespaced:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{obj['metadata'].get('namespace', cluster.namespace)}/{plural}"
