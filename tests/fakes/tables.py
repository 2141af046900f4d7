"""`Table` without a watch: it follows `FakeRecords` at once, and is as silent as a test says."""

from collections.abc import Callable, ItemsView
from typing import Any, Generic, TypeVar

from gateway_core.kube.records import Change, Listener
from tests.fakes.records import FakeRecords, has_fields

T = TypeVar("T")


class FakeTable(Generic[T]):
    """Entries of one kind. `cut` has it miss changes; `silence` and `synced` are set by tests."""

    def __init__(
        self,
        records: FakeRecords,
        plural: str,
        project: Callable[[dict[str, Any]], T | None],
        *,
        field_selector: str = "",
    ) -> None:
        self.synced = True
        self.silence = 0.0
        self.cut = False
        self._project = project
        self._selector = field_selector
        self._entries: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._listeners: list[Listener] = []
        records.listen(plural, self._follow)

    def get(self, name: str) -> T | None:
        return self._entries.get(name)

    def items(self) -> ItemsView[str, T]:
        return self._entries.items()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def offer(self, obj: dict[str, Any]) -> T | None:
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

    async def reach(self, version: int, seconds: float) -> bool:
        return not self.cut

    def forget(self, name: str) -> None:
        """Drops the entry, as if its event had not come yet."""
        self._entries.pop(name, None)
        self._versions.pop(name, None)
        self._tell(name)

    def _follow(self, change: Change) -> None:
        if self.cut:
            return
        if change.kind == "DELETED":
            self._entries.pop(change.object["metadata"]["name"], None)
            self._tell(change.object["metadata"]["name"])
        else:
            self.offer(change.object)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
