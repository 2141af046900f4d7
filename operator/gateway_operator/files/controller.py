"""The controller of files: checks new ones, deletes expired ones, and removes deleted ones.

All files of this replica's shards come through the feed. Of those that only wait for their expiry
it keeps the time; the object is read when there is work to do.
"""

from datetime import datetime

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import STORED_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.files.files import find_expiry
from gateway_operator.files.intake import Intake, is_checked
from gateway_operator.files.removal import Removal
from gateway_operator.files.storage import FileStorage
from gateway_operator.reconciler import CONFLICT_SECONDS, ON_CHANGE, Next, Reconciler, after

LONGEST_WAIT = 3600.0
"""The queue keeps a superseded schedule until it is due, so none is long."""


class FileController(Reconciler[Object]):
    """Files of this replica's shards."""

    def __init__(self, storage: FileStorage, intake: Intake, removal: Removal) -> None:
        context = self._context = storage.context
        super().__init__(context.metrics.work_failures.inc)
        self._storage = storage
        self._intake = intake
        self._removal = removal
        self._expiries: dict[str, int] = {}
        self._news: set[str] = set()
        self._leaving: dict[str, datetime] = {}
        context.metrics.oldest_deletion.set_function(self._find_oldest_deletion)

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self.forget(name)
        elif obj["metadata"].get("deletionTimestamp") or not is_checked(obj):
            self.recheck(name)
        else:
            self._plan(name, obj)

    def recheck(self, name: str) -> None:
        """Reconcile a file, whatever is known of it."""
        self._news.add(name)
        self.queue.add(name)

    async def find(self, name: str) -> Object | None:
        """Read the file."""
        return await self._storage.find(GatewayFile.plural, name)

    async def reconcile(self, name: str) -> None:
        """Take steps; without a read where the file only waits for its expiry."""
        expiry = self._expiries.get(name)
        if name not in self._news and expiry is not None and not self._is_over(expiry):
            self._schedule(name, expiry)
            return
        await super().reconcile(name)

    async def step(self, obj: Object) -> Next:
        """Remove, expire or check the file."""
        meta = obj["metadata"]
        name, expiry = meta["name"], find_expiry(obj)
        if meta.get("deletionTimestamp"):
            self._leaving[name] = datetime.fromisoformat(meta["deletionTimestamp"])
            again_in = await self._removal.remove(obj)
            if again_in is None:
                self._news.discard(name)
                return ON_CHANGE
            # it waits for a batch, perhaps a day: that is no deletion which is stuck
            self._leaving.pop(name, None)
            return after(again_in)
        if expiry is not None and self._is_over(expiry):
            await self._context.kube.delete(GatewayFile.plural, name, uid=meta["uid"])
            self._context.metrics.files_ended.labels("expired").inc()
            if STORED_FINALIZER not in (meta.get("finalizers") or ()):
                return after(CONFLICT_SECONDS)
            # the watch shows the deletion
            self._news.discard(name)
            return ON_CHANGE
        if not is_checked(obj):
            obj = await self._intake.check(obj)
        self._plan(name, obj)
        self._news.discard(name)
        return ON_CHANGE

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        super().forget(name)
        self._expiries.pop(name, None)
        self._news.discard(name)
        self._leaving.pop(name, None)

    def _plan(self, name: str, obj: Object) -> None:
        expiry = find_expiry(obj)
        if expiry is None:
            self._expiries.pop(name, None)
        else:
            self._expiries[name] = expiry
            self._schedule(name, expiry)

    def _schedule(self, name: str, expiry: int) -> None:
        left = expiry - self._context.now().timestamp()
        self.queue.add_after(name, min(max(0.0, left), LONGEST_WAIT))

    def _is_over(self, expiry: int) -> bool:
        return self._context.now().timestamp() >= expiry

    def _find_oldest_deletion(self) -> float:
        """Seconds since the oldest deletion in progress, without files that a batch reads."""
        oldest = min(self._leaving.values(), default=None)
        return 0.0 if oldest is None else (self._context.now() - oldest).total_seconds()
