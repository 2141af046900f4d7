"""Takes each file in, deletes it when its life is over, and sees it out; what kopf's feed calls.

All files of this replica's shards come through the feed, and nothing is kept of those that have
nothing left to do but stay. Of others it is the name and the time: a file is read when there is
something to be done with it.
"""

from collections.abc import Iterable
from datetime import datetime

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import STORED_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.files.files import find_expiry
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_operator.files.intake import Intake, is_taken_in
from gateway_operator.files.removal import Removal
from gateway_operator.files.storage import FileStorage
from gateway_operator.workqueue import WorkQueue

LONGEST_WAIT = 3600.0
"""The queue keeps a plan that was overtaken until it is due, so none is for long."""
CONFLICT_SECONDS = 0.2


class FileController:
    """Level-triggered: reads the object, does what is due, looks again when it must."""

    def __init__(self, tools: FileStorage, removal: Removal) -> None:
        self._tools = tools
        self._removal = removal
        self._intake = Intake(tools)
        self._queue = WorkQueue(self._look, tools.metrics.work_failures.inc)
        self._expiries: dict[str, int] = {}
        self._news: set[str] = set()
        self._leaving: dict[str, datetime] = {}

    @property
    def expiring(self) -> int:
        """How many files of these shards have an end."""
        return len(self._expiries)

    @property
    def leaving(self) -> Iterable[datetime]:
        """Since when each of those that are being deleted is, save those that a batch reads."""
        return self._leaving.values()

    def observe(self, kind: str | None, obj: Object) -> None:
        """Takes in a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self._forget(name)
        elif obj["metadata"].get("deletionTimestamp") or not is_taken_in(obj):
            self.take_up(name)
        else:
            self._plan(name, obj)

    def take_up(self, name: str) -> None:
        """Has a file looked at, whatever is known of it."""
        self._news.add(name)
        self._queue.add(name)

    async def run(self) -> None:
        """Works until cancelled."""
        await self._queue.run()

    async def end(self) -> None:
        """Takes nothing more, and leaves what is under way a moment."""
        await self._queue.drain(1.0)

    async def _look(self, name: str) -> None:
        expiry = self._expiries.get(name)
        if name not in self._news and expiry is not None and not self._is_over(expiry):
            self._wait(name, expiry)
            return
        obj = await self._tools.find(GatewayFile.plural, name)
        if obj is None:
            self._forget(name)
            return
        try:
            again_in = await self._see_to(obj)
        except (WriteConflict, ObjectNotFound):
            # another has changed it: it is read anew
            again_in = CONFLICT_SECONDS
        if again_in is None:
            self._news.discard(name)
        else:
            self._queue.add_after(name, again_in)

    async def _see_to(self, obj: Object) -> float | None:
        """Does what is due; in how many seconds there is more, None for when it changes."""
        meta = obj["metadata"]
        name, expiry = meta["name"], find_expiry(obj)
        if meta.get("deletionTimestamp"):
            self._leaving[name] = datetime.fromisoformat(meta["deletionTimestamp"])
            again_in = await self._removal.remove(obj)
            if again_in is not None:
                # it waits for a batch, perhaps a day: nothing is stuck
                self._leaving.pop(name, None)
            return again_in
        if expiry is not None and self._is_over(expiry):
            await self._tools.kube.delete(GatewayFile.plural, name, uid=meta["uid"])
            self._tools.metrics.files_ended.labels("expired").inc()
            # the watch tells what follows; where no finalizer kept it, that is nothing
            return None if STORED_FINALIZER in (meta.get("finalizers") or ()) else CONFLICT_SECONDS
        if not is_taken_in(obj):
            obj = await self._intake.take_in(obj)
        self._plan(name, obj)
        return None

    def _plan(self, name: str, obj: Object) -> None:
        expiry = find_expiry(obj)
        if expiry is None:
            self._expiries.pop(name, None)
        else:
            self._expiries[name] = expiry
            self._wait(name, expiry)

    def _wait(self, name: str, expiry: int) -> None:
        left = expiry - self._tools.now().timestamp()
        self._queue.add_after(name, min(max(0.0, left), LONGEST_WAIT))

    def _is_over(self, expiry: int) -> bool:
        return self._tools.now().timestamp() >= expiry

    def _forget(self, name: str) -> None:
        self._queue.forget(name)
        self._expiries.pop(name, None)
        self._news.discard(name)
        self._leaving.pop(name, None)
