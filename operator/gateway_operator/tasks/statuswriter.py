"""Status writes: compare-and-set on the newest object, and what follows when one does not land."""

from collections.abc import Mapping
from typing import Any

from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_operator.tasks.cache import TaskCache


def merge_status(obj: Object, change: Mapping[str, Any]) -> dict[str, Any]:
    """The status of `obj` with `change` merged into it as RFC 7396 says; neither is changed."""
    return _merge(obj.get("status") or {}, change)


def _merge(old: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(old)
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, Mapping):
            before = new.get(name)
            new[name] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            new[name] = value
    return new


class Superseded(Exception):
    """The object is not what the step began with; it has been read anew, decide again."""


class StatusWriter:
    """Writes to tasks on behalf of the steps. KubernetesUnavailable where nothing was done."""

    def __init__(self, kube: KubernetesClient, live: TaskCache) -> None:
        self._kube = kube
        self._live = live

    async def commit(self, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges `status`; the new object. Superseded where it was changed by another.

        With it goes what was held back. The whole status is sent, which at the resourceVersion
        that was read comes to the same as a patch.
        """
        return await self._write(self._kube.replace_status, obj, merge_status(obj, status))

    def hold_back(self, obj: Object, status: Mapping[str, Any]) -> None:
        """Merges `status` in memory, to be written with the next commit. Superseded as above.

        Lost with the process, and where the object changes before that commit.
        """
        name = obj["metadata"]["name"]
        if self._live.get(name) is not obj:
            raise Superseded(f"{name}: it has changed")
        self._live.hold_back({**obj, "status": merge_status(obj, status)})

    async def amend(self, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merges `patch` into metadata or spec; the new object. Superseded as above."""
        return await self._write(self._kube.patch, obj, patch)

    async def refresh(self, name: str) -> None:
        """Reads the object by name into the live tasks, or forgets it if it is gone."""
        try:
            self._live.upsert(await self._kube.get(GatewayTask.plural, name))
        except ObjectNotFound:
            self._live.drop(name)

    async def _write(self, write: Any, obj: Object, change: Mapping[str, Any]) -> Object:
        name = obj["metadata"]["name"]
        try:
            new: Object = await write(GatewayTask.plural, obj, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown) as error:
            await self.refresh(name)
            raise Superseded(f"{name}: {error}") from error
        self._live.upsert(new)
        return new
