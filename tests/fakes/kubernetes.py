"""`KubernetesClient` in memory: versions, compare-and-set, finalizers, watches, ordered faults.

Verified by the tests of the real client.
"""

import asyncio
import itertools
import re
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway_core.api.crd import KINDS
from gateway_core.api.resource import Object
from gateway_core.kube.client import KubernetesClient, Page, WatchEvent
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesUnavailable,
    ObjectNotFound,
    Terminating,
    VersionExpired,
    WriteConflict,
)
from gateway_core.kube.transport import FIRST_PAGE


@dataclass
class Fault:
    """What one call of a method comes to; `applied` has it take effect before the error."""

    error: Exception
    applied: bool = False


Listener = Callable[[WatchEvent], None]
PROGRESS = (
    *(f"WaitingFor{what}" for what in ("Provider", "Model", "Ledger", "Store", "Slot")),
    *("Submitted", "Failed", "CallbackGivenUp", "NotReady"),
)
"""Reasons of Events that follow from the status of their object."""


@dataclass
class FakeKubernetes(KubernetesClient):
    """The objects of one namespace. `away` makes all of it unreachable, `clock` dates them."""

    away: bool = False
    clock: Callable[[], str] = lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    calls: list[tuple[str, str]] = field(default_factory=list)
    secrets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    size: int = 0
    leases: dict[str, str] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    progress: list[tuple[str, str, str]] = field(default_factory=list)
    is_terminating: bool = False
    """True if the namespace is being deleted."""
    terminating: frozenset[str] = frozenset()
    """Kinds whose CRDs are being deleted."""

    def __post_init__(self) -> None:
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[tuple[str, int, WatchEvent]] = []
        self._versions = itertools.count(1)
        self._faults: defaultdict[str, deque[Fault | None]] = defaultdict(deque)
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._changed = asyncio.Event()
        self._lists: dict[str, tuple[list[Object], str, int]] = {}
        self._oldest = 0

    def order_faults(self, method: str, *faults: Fault | None) -> None:
        """Has the next calls of `method` fail so, one after the other; None is no fault."""
        self._faults[method].extend(faults)

    def listen(self, plural: str, listener: Listener) -> None:
        """Calls `listener` with every change of the kind, at once."""
        self._listeners[plural].append(listener)

    def put(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Stores an object as an admin would, replacing what is there."""
        name = obj["metadata"]["name"]
        old = self._objects.get((plural, name))
        new = copy_object(dict(obj))
        meta = new["metadata"]
        meta["uid"] = old["metadata"]["uid"] if old else str(uuid.uuid4())
        meta["creationTimestamp"] = old["metadata"]["creationTimestamp"] if old else self.clock()
        meta.setdefault("generation", 1)
        return self._store(plural, new, "MODIFIED" if old else "ADDED")

    def list_objects(self, plural: str) -> list[Object]:
        return [obj for (kind, _), obj in self._objects.items() if kind == plural]

    def find(self, plural: str, name: str) -> Object | None:
        return self._objects.get((plural, name))

    async def create(self, plural: str, obj: Mapping[str, Any]) -> Object:
        orjson.dumps(obj)  # what the real one cannot write is not taken here
        fault = self._begin("create", plural)
        if self.is_terminating or plural in self.terminating:
            raise Terminating(plural)
        if (plural, obj["metadata"]["name"]) in self._objects:
            raise AlreadyExists(obj["metadata"]["name"])
        if fault is not None and not fault.applied:
            raise fault.error
        made = self.put(plural, {k: v for k, v in obj.items() if k != "status"})
        if fault is not None:
            raise fault.error
        await asyncio.sleep(0)
        return made

    async def get(self, plural: str, name: str) -> Object:
        fault = self._begin("get", plural)
        if fault is not None:
            raise fault.error
        await asyncio.sleep(0)
        return copy_object(self._find(plural, name))

    async def list_page(
        self,
        plural: str,
        *,
        limit: int | None = None,
        token: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        at_version: str = "",
    ) -> Page:
        fault = self._begin("list_page", plural)
        if fault is not None:
            raise fault.error
        if token is None:
            found = [
                obj
                for obj in self._list_at(plural, at_version)
                if has_labels(obj, label_selector) and has_fields(obj, field_selector)
            ]
            version = at_version or str(self._last_version())
            listed, start = copy_object(found), 0
            token = str(next(self._versions))
        else:
            try:
                listed, version, start = self._lists.pop(token)
            except KeyError:
                raise VersionExpired("the list is no longer kept") from None
        limit = limit or FIRST_PAGE
        items = listed[start : start + limit]
        if metadata_only:
            items = [{"metadata": obj["metadata"]} for obj in items]
        if start + limit >= len(listed):
            return Page(items, version, None)
        self._lists[token] = (listed, version, start + limit)
        return Page(items, version, token)

    async def watch(
        self,
        plural: str,
        *,
        resource_version: str,
        timeout_seconds: int,
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        fault = self._begin("watch", plural)
        seen = int(resource_version)
        if fault is not None:
            raise fault.error
        if seen < self._oldest:
            raise VersionExpired("compacted")
        # what was selected by then, since an object that no longer is shows as deleted
        shown: dict[str, Object] = {}
        for kind, version, change in self._history:
            if kind == plural and version <= seen:
                _select(change, field_selector, shown)
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            for kind, version, change in list(self._history):
                if kind == plural and version > seen:
                    if self.away:
                        raise KubernetesUnavailable("away")
                    seen = version
                    selected = _select(change, field_selector, shown)
                    if selected is not None:
                        kept = {"metadata": selected.object["metadata"]}
                        yield WatchEvent(selected.type, kept) if metadata_only else selected
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def patch_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        return await self._patch("patch_status", plural, obj, {"status": status})

    async def replace_status(self, plural: str, obj: Object, status: Mapping[str, Any]) -> Object:
        orjson.dumps(obj)
        return await self._write(
            "replace_status",
            plural,
            obj,
            lambda current: {**current, "status": copy_object(dict(status))},
        )

    async def patch(self, plural: str, obj: Object, patch: Mapping[str, Any]) -> Object:
        changes = {k: v for k, v in patch.items() if k != "status"}
        return await self._patch("patch", plural, obj, changes)

    async def delete_all(self, plural: str) -> None:
        for obj in self.list_objects(plural):
            await self.delete(plural, obj["metadata"]["name"])

    async def is_namespace_terminating(self) -> bool:
        self._begin("is_namespace_terminating", "namespaces")
        return self.is_terminating

    async def list_creatable(self) -> frozenset[str]:
        self._begin("list_creatable", "")
        return frozenset(kind.plural for kind in KINDS) - self.terminating

    def compact(self) -> None:
        """Has the record forget all that was before."""
        self._oldest = self._last_version()
        self._history.clear()
        self._lists.clear()

    async def delete(
        self, plural: str, name: str, *, uid: str = "", version: str = ""
    ) -> Object | None:
        fault = self._begin("delete", plural)
        if fault is not None and not fault.applied:
            raise fault.error
        obj = self._objects.get((plural, name))
        if obj is not None:
            expected = {"uid": uid, "resourceVersion": version}.items()
            if any(value and obj["metadata"][field] != value for field, value in expected):
                raise WriteConflict(name)
        if obj is not None and obj["metadata"].get("finalizers"):
            if "deletionTimestamp" not in obj["metadata"]:
                marked = merge_patch(obj, {"metadata": {"deletionTimestamp": self.clock()}})
                self._store(plural, marked, "MODIFIED")
        elif obj is not None:
            self.remove(plural, name)
        if fault is not None:
            raise fault.error
        return copy_object(self._objects.get((plural, name)))

    def remove(self, plural: str, name: str) -> None:
        """Takes an object away, whatever its finalizers."""
        gone = self._objects.pop((plural, name))
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        self._tell(plural, WatchEvent("DELETED", copy_object(gone)))

    async def read_etcd_size(self) -> int:
        self._begin("read_etcd_size", "metrics")
        return self.size

    async def read_secret(self, name: str) -> dict[str, bytes]:
        fault = self._begin("read_secret", "secrets")
        if fault is not None:
            raise fault.error
        if name not in self.secrets:
            raise ObjectNotFound(name)
        return self.secrets[name]

    async def renew_lease(
        self,
        name: str,
        holder: str,
        *,
        annotations: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> None:
        self._begin("renew_lease", "leases")
        self.leases[name] = holder

    def post_event(self, obj: Object, _kind: str, reason: str, message: str) -> None:
        if not self.away:
            events = self.progress if reason in PROGRESS else self.events
            events.append((obj["metadata"]["name"], reason, message))

    async def _patch(
        self, method: str, plural: str, obj: Object, patch: Mapping[str, Any]
    ) -> Object:
        orjson.dumps(patch)
        return await self._write(method, plural, obj, lambda current: merge_patch(current, patch))

    async def _write(
        self, method: str, plural: str, obj: Object, change: Callable[[Object], Object]
    ) -> Object:
        fault = self._begin(method, plural)
        current = self._find(plural, obj["metadata"]["name"])
        if current["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise WriteConflict(obj["metadata"]["name"])
        if fault is not None and not fault.applied:
            raise fault.error
        changed = self._change(plural, current, change(current))
        if fault is not None:
            raise fault.error
        await asyncio.sleep(0)
        return changed

    def _change(self, plural: str, current: Object, merged: Object) -> Object:
        meta = merged["metadata"] = {**merged["metadata"]}
        meta["uid"] = current["metadata"]["uid"]
        if merged.get("spec") != current.get("spec"):
            meta["generation"] += 1
        if "deletionTimestamp" in meta and not meta.get("finalizers"):
            self.remove(plural, meta["name"])
            return merged
        if merged == current:
            return copy_object(current)
        return self._store(plural, merged, "MODIFIED")

    def _begin(self, method: str, plural: str) -> Fault | None:
        self.calls.append((method, plural))
        if self.away:
            raise KubernetesUnavailable("away")
        faults = self._faults[method]
        return faults.popleft() if faults else None

    def _find(self, plural: str, name: str) -> Object:
        try:
            return self._objects[plural, name]
        except KeyError:
            raise ObjectNotFound(name) from None

    def _store(self, plural: str, obj: Object, kind: str) -> Object:
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self._objects[plural, obj["metadata"]["name"]] = obj
        self._tell(plural, WatchEvent(kind, copy_object(obj)))
        return copy_object(obj)

    def _tell(self, plural: str, change: WatchEvent) -> None:
        version = int(change.object["metadata"]["resourceVersion"])
        self._history.append((plural, version, change))
        self._changed.set()
        for listener in self._listeners[plural]:
            listener(change)

    def _list_at(self, plural: str, version: str) -> list[Object]:
        """All objects of the kind, now or as they were at `version`."""
        if not version:
            return self.list_objects(plural)
        if int(version) < self._oldest:
            raise VersionExpired("compacted")
        found: dict[str, Object] = {}
        for kind, number, change in self._history:
            if kind == plural and number <= int(version):
                found.pop(change.object["metadata"]["name"], None)
                if change.type != "DELETED":
                    found[change.object["metadata"]["name"]] = change.object
        return list(found.values())

    def _last_version(self) -> int:
        return max((version for _, version, _ in self._history), default=self._oldest)


def copy_object(value: Any) -> Any:
    """Return a deep copy of JSON values; several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_object(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_object(item) for item in value]
    return value


def _select(change: WatchEvent, selector: str, shown: dict[str, Object]) -> WatchEvent | None:
    """The change as a watch with `selector` tells it; `shown` is what it has shown so far."""
    name = change.object["metadata"]["name"]
    before = shown.pop(name, None)
    if change.type != "DELETED" and has_fields(change.object, selector):
        shown[name] = change.object
        return WatchEvent("MODIFIED" if before else "ADDED", change.object) if selector else change
    if not selector:
        return change
    if before is None:
        return None
    version = {"resourceVersion": change.object["metadata"]["resourceVersion"]}
    return WatchEvent("DELETED", {**before, "metadata": {**before["metadata"], **version}})


def has_labels(obj: Object, selector: str) -> bool:
    """Whether an object is selected by `name=value,name,!name,name in (a,b),name notin (a,b),…`."""
    labels = obj["metadata"].get("labels") or {}
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        if part.endswith(")"):
            name, word, values = part.split(" ", 2)
            if (labels.get(name) in values.strip("()").split(",")) is (word == "notin"):
                return False
            continue
        name, sign, value = part.removeprefix("!").partition("=")
        if (labels.get(name) == value if sign else name in labels) is part.startswith("!"):
            return False
    return True


def has_fields(obj: Object, selector: str) -> bool:
    """Whether an object is selected by `path=value,path!=value,…`; an absent field is empty."""
    for part in filter(None, selector.split(",")):
        path, _, value = part.partition("=")
        found: Any = obj
        for name in path.removesuffix("!").split("."):
            found = (found or {}).get(name)
        if (str(found or "") == value) is path.endswith("!"):
            return False
    return True


def merge_patch(base: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return copy_object(patch)
    merged = dict(base) if isinstance(base, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
