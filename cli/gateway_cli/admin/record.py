"""`gatewayctl record`: all custom resources of a gateway in one file, and back.

The file is of one moment, also while the gateway runs. A restored object gets a new uid and
creation time from the cluster; uids that other objects have in their status are replaced alike.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway_cli import options as opt
from gateway_cli.cluster.client import MERGE_PATCH, Cluster
from gateway_cli.cluster.errors import AlreadyThere
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.commands import cluster_command
from gateway_cli.machine import write_private
from gateway_cli.output import Done, count, print_note, show_done
from gateway_cli.session import CommandError
from gateway_core.api.crd import KINDS
from gateway_core.api.ids import API_VERSION, CREATED_ANNOTATION
from gateway_core.api.resource import Object, Resource
from gateway_core.failures import describe_failure

AT_ONCE = 16
MOST_NAMES = 5
_KEPT = ("name", "labels", "annotations", "finalizers")
"""Metadata of an object that a cluster takes at its creation."""
_KINDS: Mapping[str, type[Resource]] = {kind.kind_name: kind for kind in KINDS}

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="One object a line, as JSON.")]


@cluster_command(app, show_done)
async def save(cluster: Cluster, file: File) -> Done:
    """Write all objects of a gateway, as of one moment, to FILE.

    It has no Secret: save those with kubectl.
    """
    objects = await cluster.list_moment(KINDS)
    if not objects:
        await require_gateway(cluster)
    text = "".join(json.dumps(_strip(obj)) + "\n" for obj in objects)
    try:
        # the file holds digests of keys, mail addresses and prompts: its owner alone may read it
        await asyncio.to_thread(write_private, file, text.encode())
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from error
    text = f"{count(len(objects), 'object')} written to {file}"
    return text, {"file": str(file), "objects": len(objects)}


@cluster_command(app, show_done)
async def restore(cluster: Cluster, file: File) -> Done:
    """Make the objects of FILE where they are missing. The operator must not run meanwhile.

    An object that exists keeps its spec, and its status if it has one: a restore that broke off is
    repeated.
    """
    try:
        text = await asyncio.to_thread(file.read_text)
        objects = [json.loads(line) for line in text.splitlines()]
        known = all(obj["apiVersion"] == API_VERSION and obj["kind"] in _KINDS for obj in objects)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{file} cannot be read: {describe_failure(error)}") from error
    if not known:
        raise CommandError(f"{file} has objects that are none of a gateway")
    restore = _Restore(cluster)
    made = await restore.run(objects)
    kept = len(objects) - made
    leaving = sorted(restore.leaving)
    if leaving:
        more = f" and {len(leaving) - MOST_NAMES} more" if len(leaving) > MOST_NAMES else ""
        print_note(
            f"! being deleted, and so not restored: {', '.join(leaving[:MOST_NAMES])}{more}."
            " Repeat the command once they are gone"
        )
    document = {"objects": len(objects), "made": made, "kept": kept, "being_deleted": leaving}
    return f"{count(made, 'object')} created, {kept:,} unchanged", document


class _Restore:
    """One restore: objects first, so that all new uids are known, then what refers to them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._uids: dict[str, str] = {}
        self._bare: set[int] = set()
        """Positions of the objects that have no status yet."""
        self.leaving: list[str] = []
        """Objects that are there and are being deleted, which they were not in the file."""

    async def run(self, objects: list[Object]) -> int:
        """Return how many objects it made. ClusterError."""
        made = await asyncio.gather(*(self._make(n, obj) for n, obj in enumerate(objects)))
        await asyncio.gather(*(self._complete(objects[n]) for n in sorted(self._bare)))
        return sum(made)

    async def _make(self, number: int, obj: Object) -> bool:
        kind, meta = _KINDS[obj["kind"]], obj["metadata"]
        kept = {name: meta[name] for name in _KEPT if meta.get(name)}
        if not obj.get("status"):
            # else the operator would refuse a run that had not begun, as one that lost its state
            notes = meta.get("annotations") or {}
            kept["annotations"] = {n: v for n, v in notes.items() if n != CREATED_ANNOTATION}
        body = {**obj, "metadata": kept}
        body.pop("status", None)
        path = self._path(kind)
        async with self._slots:
            try:
                present, is_new = await self._cluster.call("POST", path, body), True
            except AlreadyThere:
                present, is_new = await self._cluster.get(kind, meta["name"]), False
                was_leaving = "deletionTimestamp" in meta
                if "deletionTimestamp" in present["metadata"] and not was_leaving:
                    self.leaving.append(f"{kind.kind_name} {meta['name']}")
        self._uids[meta["uid"]] = present["metadata"]["uid"]
        if not present.get("status"):
            self._bare.add(number)
        return is_new

    async def _complete(self, obj: Object) -> None:
        """Write the status; delete what was being deleted."""
        path = f"{self._path(_KINDS[obj['kind']])}/{quote(obj['metadata']['name'], safe='')}"
        async with self._slots:
            if obj.get("status"):
                status = {"status": self._rename(obj["status"])}
                await self._cluster.call("PATCH", f"{path}/status", status, None, MERGE_PATCH)
            if obj["metadata"].get("deletionTimestamp"):
                await self._cluster.call("DELETE", path)

    def _rename(self, value: Any) -> Any:
        """Return the same JSON with the new uid for each former one."""
        if isinstance(value, str):
            return self._uids.get(value, value)
        if isinstance(value, list):
            return [self._rename(item) for item in value]
        if isinstance(value, dict):
            return {name: self._rename(item) for name, item in value.items()}
        return value

    def _path(self, kind: type[Resource]) -> str:
        return f"/apis/{API_VERSION}/namespaces/{self._cluster.namespace}/{kind.plural}"


def _strip(obj: Object) -> Object:
    meta = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": meta}
