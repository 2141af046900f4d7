"""A table of one kind kept by list and watch; fulfils `ports.caches`.

What kopf's feed lacks for our purpose: a relist is compared with what is in memory, so a deletion
missed while the watch was away is found, and a silent watch is known as such within seconds. The
server is asked to close each watch after `beat` seconds, so a healthy stream is never quiet for
longer: its orderly end is the heartbeat, and nobody has to write one.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, ItemsView
from typing import Generic, TypeVar

import structlog

from gateway_core.concurrency import back_off
from gateway_core.kube.records import (
    Change,
    FollowedTable,
    Listener,
    Object,
    RecordError,
    Records,
    WatchExpired,
)

T = TypeVar("T")

BEAT_SECONDS = 3
RESYNC_SECONDS = 600.0
_MOST_TOMBSTONES = 20_000
FIRST_SECONDS = 0.1
LONGEST_SECONDS = 3.0

_log = structlog.get_logger(__name__)


class KubeTable(FollowedTable[T], Generic[T]):
    """Entries made by `project` of each object; None leaves the object out."""

    def __init__(
        self,
        records: Records,
        plural: str,
        project: Callable[[Object], T | None],
        *,
        field_selector: str = "",
        beat_seconds: int = BEAT_SECONDS,
        resync_seconds: float = RESYNC_SECONDS,
    ) -> None:
        self.plural = plural
        self.repairs = 0
        self._records = records
        self._project = project
        self._selector = field_selector
        self._beat = beat_seconds
        self._resync = resync_seconds
        self._entries: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._listeners: list[Listener] = []
        self._alive_at: float | None = None
        self._synced = asyncio.Event()
        self._version = "0"
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def synced(self) -> bool:
        """Whether a full list has been read once."""
        return self._synced.is_set()

    @property
    def silence(self) -> float:
        """Seconds since the last event, or orderly end of a stream."""
        return float("inf") if self._alive_at is None else time.monotonic() - self._alive_at

    def get(self, name: str) -> T | None:
        """The entry, if there is one."""
        return self._entries.get(name)

    def items(self) -> ItemsView[str, T]:
        """All entries."""
        return self._entries.items()

    def subscribe(self, listener: Listener) -> None:
        """Has `listener` called with the name of each changed entry."""
        self._listeners.append(listener)

    def offer(self, obj: Object) -> T | None:
        """Takes in an object unless a newer one, or its deletion, is known."""
        meta = obj["metadata"]
        name, version = meta["name"], int(meta["resourceVersion"])
        if version > self._versions.get(name, self._tombstones.get(name, -1)):
            self._tombstones.pop(name, None)
            self._versions[name] = version
            entry = self._read(obj)
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
            self._tell(name)
        return self._entries.get(name)

    async def reach(self, version: int, seconds: float) -> bool:
        """Waits for the watch to come to that version; see the port."""
        if int(self._version) >= version:
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
            # an entry that was reached is taken out by whoever has told it
            if not reached.done() or reached.cancelled():
                self._waiting.remove(entry)
        return True

    async def wait_synced(self) -> None:
        """Returns once a full list has been read."""
        await self._synced.wait()

    def _read(self, obj: Object) -> T | None:
        """The entry of `obj`; one that cannot be read counts as absent and harms no other."""
        try:
            return self._project(obj)
        except Exception as error:  # whatever is stored, the table goes on
            name = obj["metadata"]["name"]
            _log.warning(
                "object cannot be read", kind=self.plural, object=name, error=type(error).__name__
            )
            return None

    async def run(self) -> None:
        """Keeps the table until cancelled, whatever the API does; may be called again."""
        failures = 0
        listed_at = float("-inf")
        while True:
            try:
                if time.monotonic() - listed_at > self._resync:
                    await self._list()
                    listed_at = time.monotonic()
                await self._watch()
                failures = 0
            except WatchExpired:
                listed_at = float("-inf")
                await asyncio.sleep(FIRST_SECONDS)
            except RecordError as error:
                failures += 1
                _log.warning("watch failed", kind=self.plural, error=str(error), failures=failures)
                await asyncio.sleep(
                    back_off(failures, first=FIRST_SECONDS, longest=LONGEST_SECONDS)
                )

    async def _list(self) -> None:
        """Reads everything, and mends what the watch has missed."""
        first = await self._records.list_page(self.plural, field_selector=self._selector)
        listed_version, page, names = int(first.resource_version), first, set[str]()
        repairs = 0
        while True:
            for obj in page.items:
                name = obj["metadata"]["name"]
                names.add(name)
                before = self._versions.get(name)
                self.offer(obj)
                repairs += self.synced and before != self._versions.get(name)
            if page.next_token is None:
                break
            page = await self._records.list_page(
                self.plural, token=page.next_token, field_selector=self._selector
            )
        for name, version in list(self._versions.items()):
            if name not in names and version <= listed_version:
                self._drop(name, listed_version)
                repairs += 1
        if repairs and self.synced:
            self.repairs += repairs
            _log.warning("table repaired by a list", kind=self.plural, entries=repairs)
        self._come_to(first.resource_version)
        self._synced.set()
        self._alive_at = time.monotonic()

    async def _watch(self) -> None:
        """One stream, from the last version seen to the end the server was asked for."""
        stream = self._records.watch(
            self.plural,
            resource_version=self._version,
            timeout_seconds=self._beat,
            field_selector=self._selector,
        )
        async for change in stream:
            self._alive_at = time.monotonic()
            self._apply(change)
        self._alive_at = time.monotonic()

    def _apply(self, change: Change) -> None:
        meta = change.object["metadata"]
        if change.kind == "DELETED":
            self._drop(meta["name"], int(meta["resourceVersion"]))
        elif change.kind in ("ADDED", "MODIFIED"):
            self.offer(change.object)
        self._come_to(meta["resourceVersion"])

    def _come_to(self, version: str) -> None:
        self._version = version
        if not self._waiting:
            return
        still = []
        for entry in self._waiting:
            if entry[0] > int(version):
                still.append(entry)
            elif not entry[1].done():
                entry[1].set_result(None)
        self._waiting = still

    def _drop(self, name: str, version: int) -> None:
        if self._versions.get(name, -1) > version:
            return
        self._versions.pop(name, None)
        self._entries.pop(name, None)
        self._tombstones[name] = version
        if len(self._tombstones) > _MOST_TOMBSTONES:
            self._tombstones.popitem(last=False)
        self._tell(name)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)
