"""`Cache` without a watch: it follows `FakeKubernetes` at once, as stale as a test says."""

from collections.abc import Callable, ItemsView
from typing import Any, Generic, TypeVar

from gateway_core.kube.client import WatchEvent
from gateway_core.kube.informer import Listener
from tests.fakes.kubernetes import FakeKubernetes, has_fields

T = TypeVar("T")


class FakeInformer(Generic[T]):
    """Entries of one kind. `cut` has it miss changes; `silence` and `synced` are set by tests."""

    def __init__(
        self,
        kube: FakeKubernetes,
        plural: str,
        project: Callable[[dict[str, Any]], T | None],
        *,
        field_selector: str = "",
    ) -> None:
        self.synced = True
        self.staleness = 0.0
        self.cut = False
        self._project = project
        self._selector = field_selector
        self._entries: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._listeners: list[Listener] = []
        kube.listen(plural, self._follow)

    async def wait_synced(self) -> None:
        """Returns at once: it follows from the start."""

    def get(self, name: str) -> T | None:
        return self._entries.get(name)

    def items(self) -> ItemsView[str, T]:
        return self._entries.items()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def upsert(self, obj: dict[str, Any]) -> T | None:
        name, version = obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"])
        if version > self._versions.get(name, -1):
            self._versions[name] = version
            entry = self._project(obj) if has_fields(obj, self._selector) else None
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
            self._tell(name)
        return self._entries.get(name)

    def remove(self, obj: dict[str, Any]) -> None:
        self.forget(obj["metadata"]["name"])

    async def wait_for_version(self, version: int, seconds: float) -> bool:
        return not self.cut

    def forget(self, name: str) -> None:
        """Drops the entry, as if its event had not come yet."""
        self._entries.pop(name, None)
        self._versions.pop(name, None)
        self._tell(name)

    def _follow(self, change: WatchEvent) -> None:
        if self.cut:
            return
        if change.type == "DELETED":
            self._entries.pop(change.object["metadata"]["name"], None)
            self._tell(change.object["metadata"]["name"])
        else:
            self.upsert(change.object)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
