"""The controller of files: checks new ones, deletes expired ones, and removes deleted ones.

All files of this replica's shards come through the feed. Of those that only wait for their expiry
it keeps the time; the object is read when there is work to do.

A removal releases the quota, then removes the bytes, then the finalizer. Each step may be repeated,
and the last is the mark that the others are done. The finalizer stays while the store is away:
without its object the bytes would stay until the next removal of orphans. An event reports that to
an admin, who may remove the finalizer.
"""

from datetime import datetime
from functools import partial

from gateway_core.api.account import GatewayAccount
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import STORED_FINALIZER
from gateway_core.api.resource import Object, upload_folder
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import find_expiry
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.storage.content import find_foreign, list_keys, pool_of
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.files.intake import Intake, is_checked
from gateway_operator.files.storage import FileStorage
from gateway_operator.outages import Outages
from gateway_operator.reconciler import CONFLICT_SECONDS, ON_CHANGE, Next, Reconciler, after
from gateway_operator.uploads.controller import Settlement

GRACE_SECONDS = 60.0
"""How long after a batch file's deletion a batch may still be created that was admitted before:
the Kubernetes API may process its create for 60 s, long after the gateway gave up waiting."""
BATCH_SECONDS = 10.0
"""Between two checks whether a batch reads a deleted file."""
REPORT_SECONDS = 600.0
"""How long a removal may fail before an event reports it."""


class Removal:
    """Takes the steps of a removal."""

    def __init__(
        self,
        storage: FileStorage,
        settlement: Settlement,
        accounts: Cache[GatewayAccount],
        *,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._storage = storage
        self._context = storage.context
        self._settlement = settlement
        self._accounts = accounts
        self._grace = grace_seconds

    async def remove(self, obj: Object) -> float | None:
        """Take all steps; or the seconds until the next try, where a batch reads the file.

        Raises WriteConflict, ObjectNotFound, StoreUnavailable, RecordUnavailable.
        """
        context, name = self._context, obj["metadata"]["name"]
        request = obj["spec"]["request"]
        account = request["accountName"]
        # of terminating kinds no batch is created any more, and those that run end within the time
        is_kept = not context.termination.is_overdue(GatewayFile.plural)
        if request["purpose"] == "batch" and is_kept:
            age = context.seconds_since(obj["metadata"]["deletionTimestamp"])
            # a batch that is created late goes with its account, which waits for this file
            is_final = context.termination.covers(GatewayBatch.plural) or self._is_removed(account)
            if age < self._grace and not is_final:
                return self._grace - age
            if await self._is_read(name):
                return BATCH_SECONDS
        await self._storage.release(account, pool_of(obj), name)
        context.failpoints.reach("after-file-release")
        with context.termination.giving_up(GatewayFile.plural, obj, "its bytes"):
            try:
                await self._remove_bytes(obj)
            except StoreUnavailable as error:
                self._report(obj, error)
                raise
        context.failpoints.reach("after-file-bytes")
        upload = await self._find_upload(obj)
        if upload is not None:
            await self._settlement.close(upload, obj)
            context.failpoints.reach("after-file-upload")
        await self._storage.remove_finalizer(GatewayFile.plural, obj)
        context.metrics.files_ended.labels("removed").inc()
        context.failpoints.reach("after-file-finalizer")
        return None

    def _is_removed(self, account: str) -> bool:
        found = self._accounts.get(account)
        return found is not None and found.metadata.deletion_timestamp is not None

    async def _is_read(self, name: str) -> bool:
        """Return whether a batch that is not settled names the file as its input."""
        try:
            page = await self._context.kube.list_page(
                GatewayBatch.plural,
                limit=1,
                field_selector=f"spec.request.inputFileName={name},status.work!=Settled",
                metadata_only=True,
            )
        except ObjectNotFound:
            # the CRD is gone, and with it all batches
            return False
        return bool(page.items)

    async def _remove_bytes(self, obj: Object) -> None:
        """Remove the segments that are the file's own."""
        foreign = set(find_foreign(obj))
        request = obj["spec"]["request"]
        if request.get("uploadName"):
            foreign |= await self._find_others(obj)
        await self._context.store.delete_many(key for key in list_keys(obj) if key not in foreign)

    async def _find_others(self, obj: Object) -> set[str]:
        """Return keys of the Upload, if it became another file or none."""
        request = obj["spec"]["request"]
        upload = await self._storage.find(GatewayUpload.plural, request["uploadName"])
        if upload is None or _names_file(upload, obj):
            return set()
        folder = upload_folder(request["accountName"], request["uploadName"])
        return {key for key in list_keys(obj) if key.startswith(folder)}

    async def _find_upload(self, obj: Object) -> Object | None:
        """Return the Upload that was completed as this file."""
        name = obj["spec"]["request"].get("uploadName")
        upload = await self._storage.find(GatewayUpload.plural, name) if name else None
        return upload if upload is not None and _names_file(upload, obj) else None

    def _report(self, obj: Object, error: StoreUnavailable) -> None:
        """Report bytes that could not be removed for a long time."""
        if self._context.seconds_since(obj["metadata"]["deletionTimestamp"]) >= REPORT_SECONDS:
            text = f"the file stays until its bytes can be removed: {error}"
            self._context.events.warn(obj, reason="BytesNotRemoved", message=text)


def _names_file(upload: Object, file: Object) -> bool:
    """Return whether the Upload was completed as that file of the same account."""
    spec, request = upload["spec"], file["spec"]["request"]
    completion = spec.get("completion") or {}
    return (completion.get("fileName"), spec["request"]["accountName"]) == (
        file["metadata"]["name"],
        request["accountName"],
    )


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
        self._outages = Outages()
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
        """Reconcile a file, even one that only waits for its expiry."""
        self._news.add(name)
        self.queue.add(name)

    def look_again(self) -> None:
        """Reconcile the files that are deleted or not checked."""
        for name in list(self._news):
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
        name = obj["metadata"]["name"]
        async with self._outages.shown(name, partial(self._intake.show_wait, obj)):
            return await self._take_step(obj)

    async def _take_step(self, obj: Object) -> Next:
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
                # it is gone at once and needs no removal: look once more, and forget it
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
        self._outages.forget(name)

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
        """Return the seconds since the oldest deletion began, but for files that a batch reads."""
        oldest = min(self._leaving.values(), default=None)
        return 0.0 if oldest is None else (self._context.now() - oldest).total_seconds()
