"""The batches that this replica works, as last seen, and compare-and-set writes to them."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_operator.tasks.statuswriter import Superseded

_MOST_GONE = 2000


class BatchCache:
    """Newest known object by name; never goes back to an older one."""

    def __init__(self, kube: KubernetesClient) -> None:
        self._kube = kube
        self._objects: dict[str, Object] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """How many batches are known."""
        return len(self._objects)

    def get(self, name: str) -> Object | None:
        """The newest known object."""
        return self._objects.get(name)

    def upsert(self, obj: Object) -> bool:
        """Takes in an object unless it or a newer one is known; whether it was taken."""
        meta = obj["metadata"]
        name, known = meta["name"], self._objects.get(meta["name"])
        version = self._gone.get(name, -1) if known is None else _read_version(known)
        if _read_version(obj) <= version:
            return False
        meta.pop("managedFields", None)
        self._objects[name] = obj
        return True

    def drop(self, name: str) -> None:
        """Forgets a batch, and for a while does not take it up again from an old event."""
        known = self._objects.pop(name, None)
        if known is None:
            return
        self._gone[name] = _read_version(known)
        if len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)

    async def refresh(self, name: str) -> Object | None:
        """The object as it is now; None if it is gone, and then it is forgotten."""
        try:
            self.upsert(await self._kube.get(GatewayBatch.plural, name))
        except ObjectNotFound:
            self.drop(name)
        return self.get(name)

    async def commit(self, obj: Object, status: Mapping[str, Any]) -> Object:
        """Merges `status`; the new object. Superseded where it was changed by another."""
        return await self._write(self._kube.patch_status, obj, status)

    async def amend(self, obj: Object, patch: Mapping[str, Any]) -> Object:
        """Merges `patch` into metadata or spec; the new object. Superseded as above."""
        return await self._write(self._kube.patch, obj, patch)

    async def _write(self, write: Any, obj: Object, change: Mapping[str, Any]) -> Object:
        name = obj["metadata"]["name"]
        try:
            new: Object = await write(GatewayBatch.plural, obj, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown) as error:
            await self.refresh(name)
            raise Superseded(f"{name}: {error}") from error
        self.upsert(new)
        return new


def _read_version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
