"""Informer: a cache of one kind, kept by list and watch.

Unlike kopf's feed, a resync compares the list with the cache, so it finds deletions that the watch
missed, and a dead watch is noticed within seconds: the server is asked to end each watch after
`HEARTBEAT_SECONDS`, so the orderly end of a stream is a heartbeat. Lists are consistent, so one of
a lower version than was known proves that etcd was restored: it replaces all that is cached.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, ItemsView
from typing import Generic, Protocol, TypeVar

import structlog

from gateway_core.api.resource import Object
from gateway_core.concurrency import back_off
from gateway_core.kube.client import KubernetesClient, Page, WatchEvent
from gateway_core.kube.errors import KubernetesError, VersionExpired

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

HEARTBEAT_SECONDS = 3
RESYNC_SECONDS = 600.0
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 3.0
MOST_TOMBSTONES = 20_000

_log = structlog.get_logger(__name__)

Listener = Callable[[str], None]
"""Called with an object's name after its entry has changed or gone."""


def unless_deleted(project: Callable[[Object], T | None]) -> Callable[[Object], T | None]:
    """Return a projection without objects whose deletion has begun: a finalizer may keep them."""

    def project_current(obj: Object) -> T | None:
        return None if "deletionTimestamp" in obj["metadata"] else project(obj)

    return project_current


class Cache(Protocol[T_co]):
    """Entries of one kind by object name, as an informer keeps them."""

    @property
    def synced(self) -> bool:
        """Whether a full list has been read once."""
        ...

    @property
    def staleness(self) -> float:
        """Seconds since the watch last showed a sign of life; infinite before the first list."""
        ...

    def get(self, name: str) -> T_co | None:
        """Return the entry, None where the cache has none."""
        ...

    def items(self) -> ItemsView[str, T_co]:
        """Return all entries; a live view."""
        ...

    def upsert(self, obj: Object) -> T_co | None:
        """Add an object that was read or written by name, unless a newer version is cached.

        The cached entry.
        """
        ...

    def remove(self, obj: Object) -> None:
        """Remove an object of which this version was deleted."""
        ...

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after each change from now on."""
        ...


class Informer(Cache[T], Generic[T]):
    """Cache that follows the API server.

    `project` makes the entry of an object; None leaves the object out. An object that it fails on
    counts as absent, and harms no other. Tombstones are needed only where objects are upserted.
    """

    def __init__(
        self,
        kube: KubernetesClient,
        plural: str,
        project: Callable[[Object], T | None],
        *,
        field_selector: str = "",
        metadata_only: bool = False,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
        resync_seconds: float = RESYNC_SECONDS,
        most_tombstones: int = MOST_TOMBSTONES,
    ) -> None:
        self.plural = plural
        self.repairs = 0
        self._kube = kube
        self._project = project
        self._selector = field_selector
        self._metadata_only = metadata_only
        self._heartbeat = heartbeat_seconds
        self._resync = resync_seconds
        self._most_tombstones = most_tombstones
        self._entries: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        # versions of deleted objects: a read that began before the deletion must not restore one
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._listeners: list[Listener] = []
        self._alive_at: float | None = None
        self._synced = asyncio.Event()
        self._version = "0"
        self.listed_version = 0
        """The version of the record that the latest full list has."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def synced(self) -> bool:
        """Whether a full list has been read once."""
        return self._synced.is_set()

    @property
    def staleness(self) -> float:
        """Seconds since the last event, or orderly end of a stream."""
        return float("inf") if self._alive_at is None else time.monotonic() - self._alive_at

    @property
    def version(self) -> int:
        """The version of the record up to which it has every change."""
        return int(self._version)

    def find_version(self, name: str) -> int:
        """Return the version of a known object; 0 of any other."""
        return self._versions.get(name, 0)

    def get(self, name: str) -> T | None:
        """Return the entry, None where there is none."""
        return self._entries.get(name)

    def items(self) -> ItemsView[str, T]:
        """Return all entries."""
        return self._entries.items()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with the name of each changed entry."""
        self._listeners.append(listener)

    def upsert(self, obj: Object) -> T | None:
        """Add an object unless a newer version, or its deletion, is known."""
        meta = obj["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if version > self._versions.get(name, self._tombstones.get(name, -1)):
            self._tombstones.pop(name, None)
            self._versions[name] = version
            entry = self._project_safely(obj)
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
            self._notify(name)
        return self._entries.get(name)

    def remove(self, obj: Object) -> None:
        """Remove an object unless a newer version, which another has made since, is known."""
        self._delete(obj["metadata"]["name"], int(obj["metadata"]["resourceVersion"]))

    async def wait_for_version(self, version: int, seconds: float) -> bool:
        """Wait until the cache has every change up to `version`; False after `seconds`."""
        if self.version >= version:
            return True
        reached = asyncio.get_running_loop().create_future()
        entry = (version, reached)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await reached
        except TimeoutError:
            return False
        finally:
            # a reached entry is removed by _advance
            if not reached.done() or reached.cancelled():
                self._waiting.remove(entry)
        return True

    async def wait_synced(self) -> None:
        """Wait until a full list has been read."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the API server until cancelled; KubernetesErrors are retried."""
        failures = 0
        listed_at = float("-inf")
        while True:
            try:
                if time.monotonic() - listed_at > self._resync:
                    await self._list()
                    listed_at = time.monotonic()
                await self._watch()
                failures = 0
            except VersionExpired:
                listed_at = float("-inf")
                await asyncio.sleep(FIRST_SECONDS)
            except KubernetesError as error:
                failures += 1
                _log.warning("watch failed", kind=self.plural, error=str(error), failures=failures)
                await asyncio.sleep(
                    back_off(failures, first=FIRST_SECONDS, longest=LONGEST_SECONDS)
                )

    async def _list(self) -> None:
        """Read all objects, and repair what the watch has missed."""
        first = await self._list_page()
        listed_version, page, names = int(first.resource_version), first, set[str]()
        repairs = 0
        if listed_version < self.version:
            _log.error("etcd was restored: the cache is replaced", kind=self.plural)
            self._versions = dict.fromkeys(self._versions, 0)
            self._tombstones.clear()
        while True:
            for obj in page.items:
                name = obj["metadata"]["name"]
                names.add(name)
                before = self._versions.get(name)
                self.upsert(obj)
                repairs += self.synced and before != self._versions.get(name)
            if page.next_token is None:
                break
            page = await self._list_page(page.next_token)
        for name, version in list(self._versions.items()):
            # one upserted while the list was read is newer than the list
            if name not in names and version <= listed_version:
                self._delete(name, listed_version)
                repairs += 1
        if repairs and self.synced:
            self.repairs += repairs
            _log.warning("cache repaired by a resync", kind=self.plural, entries=repairs)
        self._advance(first.resource_version)
        self.listed_version = listed_version
        self._synced.set()
        self._alive_at = time.monotonic()

    async def _list_page(self, token: str | None = None) -> Page:
        return await self._kube.list_page(
            self.plural,
            token=token,
            field_selector=self._selector,
            metadata_only=self._metadata_only,
        )

    async def _watch(self) -> None:
        """One stream, from the last version seen until the server ends it."""
        stream = self._kube.watch(
            self.plural,
            resource_version=self._version,
            timeout_seconds=self._heartbeat,
            field_selector=self._selector,
            metadata_only=self._metadata_only,
        )
        async for event in stream:
            self._alive_at = time.monotonic()
            self._apply(event)
        self._alive_at = time.monotonic()

    def _apply(self, event: WatchEvent) -> None:
        meta = event.object["metadata"]
        if int(meta["resourceVersion"]) < self.version:
            raise VersionExpired("the watch shows a lower version than was known")
        if event.type == "DELETED":
            self._delete(meta["name"], int(meta["resourceVersion"]))
        elif event.type in ("ADDED", "MODIFIED"):
            self.upsert(event.object)
        self._advance(meta["resourceVersion"])

    def _advance(self, version: str) -> None:
        self._version = version
        still = []
        for entry in self._waiting:
            if entry[0] > int(version):
                still.append(entry)
            elif not entry[1].done():
                entry[1].set_result(None)
        self._waiting = still

    def _delete(self, name: str, version: int) -> None:
        if self._versions.get(name, -1) > version:
            return
        self._versions.pop(name, None)
        self._entries.pop(name, None)
        self._tombstones[name] = version
        if len(self._tombstones) > self._most_tombstones:
            self._tombstones.popitem(last=False)
        self._notify(name)

    def _project_safely(self, obj: Object) -> T | None:
        try:
            return self._project(obj)
        except Exception as error:  # an admin may store what no release has foreseen
            name = obj["metadata"]["name"]
            _log.warning(
                "object cannot be read", kind=self.plural, object=name, error=type(error).__name__
            )
            return None

    def _notify(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
