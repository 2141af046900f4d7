"""The newest known objects of a kind, fed by watch events and own writes; and these writes."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, ValuesView
from typing import Any, Generic, TypeVar

from gateway_core.api.resource import Object, Resource
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound, WriteConflict, WriteOutcomeUnknown
from gateway_operator.reconciler import Superseded

R = TypeVar("R", bound=Resource)


class ObjectCache(Generic[R]):
    """Objects by name. Never goes back to an older version.

    They are kept as they were read and parsed at each `get`: parsed ones take several times the
    memory, and of ten thousands of tasks only a few are being worked at any moment.
    """

    def __init__(self, kind: type[R], *, most_gone: int = 20_000) -> None:
        self.kind = kind
        self._objects: dict[str, Object] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._most_gone = most_gone

    def __len__(self) -> int:
        """Number of objects."""
        return len(self._objects)

    def __contains__(self, name: str) -> bool:
        """Whether an object of that name is known."""
        return name in self._objects

    def get(self, name: str) -> R | None:
        """The newest known object."""
        obj = self._objects.get(name)
        return None if obj is None else self.kind.load(obj)

    def names(self) -> list[str]:
        """A copy of all names."""
        return list(self._objects)

    def objects(self) -> ValuesView[Object]:
        """A live view of all objects, unparsed."""
        return self._objects.values()

    def version(self, name: str) -> int:
        """The known resourceVersion of `name`, -1 if it is unknown."""
        obj = self._objects.get(name)
        return -1 if obj is None else int(obj["metadata"]["resourceVersion"])

    def is_newest(self, resource: R) -> bool:
        """Whether the resource was loaded from the object that is known now."""
        return self._objects.get(resource.metadata.name) is resource.source

    def is_known(self, name: str, version: int) -> bool:
        """Whether that version, or a newer one, was seen or is known to be of the past."""
        return version <= max(self.version(name), self._gone.get(name, -1))

    def upsert(self, obj: Object) -> bool:
        """Keep an object unless it or a newer one is known; whether it was kept.

        `managedFields` is dropped: it is half of the object, and no controller reads it.
        """
        meta = obj["metadata"]
        if self.is_known(meta["name"], int(meta["resourceVersion"])):
            return False
        meta.pop("managedFields", None)
        self._objects[meta["name"]] = obj
        return True

    def drop(self, name: str, version: int = -1) -> None:
        """Forget an object, and for a while ignore older events that show it.

        `version` is the newest that is known to be of the past.
        """
        gone = max(version, self.version(name), self._gone.pop(name, -1))
        self._objects.pop(name, None)
        if gone >= 0:
            self._gone[name] = gone
        if len(self._gone) > self._most_gone:
            self._gone.popitem(last=False)


class StatusWriter(Generic[R]):
    """Compare-and-set writes to the newest objects. KubernetesUnavailable: nothing was done.

    Superseded where a write does not land: the object has been read anew by then.
    """

    def __init__(self, kube: KubernetesClient, cache: ObjectCache[R]) -> None:
        self._kube = kube
        self._cache = cache

    async def commit(self, resource: R, status: Mapping[str, Any]) -> None:
        """Merge `status` into the resource's status."""
        await self._write(self._kube.patch_status, resource, status)

    async def amend(self, resource: R, patch: Mapping[str, Any]) -> R:
        """Merge `patch` into metadata or spec; the new resource."""
        return self._cache.kind.load(await self._write(self._kube.patch, resource, patch))

    async def refresh(self, name: str) -> R | None:
        """Read an object by name into the cache; None, and forgotten, if it is gone."""
        try:
            self._cache.upsert(await self._kube.get(self._cache.kind.plural, name))
        except ObjectNotFound:
            self._cache.drop(name)
        return self._cache.get(name)

    async def _write(
        self,
        write: Callable[[str, Object, Mapping[str, Any]], Awaitable[Object]],
        resource: R,
        change: Mapping[str, Any],
    ) -> Object:
        name = resource.metadata.name
        try:
            new = await write(self._cache.kind.plural, resource.source, change)
        except (WriteConflict, ObjectNotFound, WriteOutcomeUnknown) as error:
            await self.refresh(name)
            raise Superseded(f"{name}: {error}") from error
        self._cache.upsert(new)
        return new
