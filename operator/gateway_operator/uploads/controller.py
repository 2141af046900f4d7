"""Uploads: expired once their hour is over, and settled once they have an outcome.

The feed shows uploads that are not settled. Of those that only wait the controller keeps the time
of their expiry; the object is read when there is work to do.

To settle is to make the File, or to remove the parts. Each step may be repeated; `work: Settled` is
the mark that the others are done, and written last, with the uid of the File's object: a File that
is made from the manifest after that differs in it.
"""

from functools import partial
from typing import Any

import structlog

from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object, upload_folder
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import FileRecorder
from gateway_core.files.uploads import compose_file, is_settled, make_file, read_expiry
from gateway_core.kube.errors import ObjectNotFound, Terminating
from gateway_core.storage.content import list_keys
from gateway_core.storage.objects import ObjectMissing, StoreUnavailable
from gateway_operator.context import find_lacking
from gateway_operator.files.storage import FileStorage
from gateway_operator.outages import Outages
from gateway_operator.reconciler import ON_CHANGE, Next, Reconciler, after

_log = structlog.get_logger(__name__)


_ENDS = {
    "Completed": ("True", Reason.COMPLETED, "its file is there"),
    "Cancelled": ("False", Reason.CANCELLED, "it was cancelled"),
    "Expired": ("False", Reason.EXPIRED, "it was not completed within its hour"),
}


def name_file(file: Object) -> dict[str, Any]:
    """Return the fields of an Upload's status that identify its File's object."""
    meta = file["metadata"]
    return {"fileUid": meta["uid"], "fileCreationTime": meta["creationTimestamp"]}


class Settlement:
    """Settles uploads that have an outcome. Raises what the stores raise."""

    def __init__(self, storage: FileStorage, files: FileRecorder) -> None:
        self._storage = storage
        self._context = storage.context
        self._files = files

    async def settle(self, upload: Object) -> None:
        """Do all that follows from the outcome. WriteConflict where the Upload has changed."""
        if upload["spec"]["outcome"] == "Completed":
            await self._settle_completed(upload)
        else:
            await self._drop_parts(upload)
            await self._mark(upload)

    async def close(self, upload: Object, file: Object) -> None:
        """Settle a completed Upload whose File is being deleted: nothing is left of either.

        So no process makes that File again from the manifest. To be called once no batch reads it.
        """
        await self._drop_parts(upload, closing=file["metadata"]["name"])
        await self._storage.release(
            upload["spec"]["request"]["accountName"], "files", file["metadata"]["name"]
        )
        if not is_settled(upload):
            await self._mark(upload, file)

    async def _settle_completed(self, upload: Object) -> None:
        storage, failpoints = self._storage, self._context.failpoints
        if await self._is_lost(upload):
            # restored from a backup: its File was made before, and deleted with its bytes
            await self._drop_parts(upload)
            return await self._mark(upload)
        try:
            file = await make_file(self._context.kube, self._files, upload)
        except Terminating:
            if not upload["metadata"].get("deletionTimestamp"):
                raise
            await self._drop_parts(upload)
            return await self._mark(upload)
        if file is None:
            # another owner has settled it while this process was halted
            return
        name = upload["metadata"]["name"]
        failpoints.reach("after-upload-file")
        account = upload["spec"]["request"]["accountName"]
        if file["metadata"].get("deletionTimestamp"):
            # a batch may still read the File: its deletion settles the Upload after that
            await storage.release(account, "files", name)
            await storage.release(account, "files", file["metadata"]["name"])
            return
        await storage.move(account, name, file["metadata"]["name"])
        failpoints.reach("after-upload-move")
        kept = frozenset(list_keys(file)) | await storage.find_kept(name)
        await storage.remove_folder(upload_folder(account, name), kept=kept)
        failpoints.reach("after-upload-parts")
        await self._mark(upload, file)
        left = await storage.find(GatewayFile.plural, file["metadata"]["name"])
        if left is None or left["metadata"].get("deletionTimestamp"):
            await storage.release(account, "files", file["metadata"]["name"])

    async def _is_lost(self, upload: Object) -> bool:
        """Return whether neither the File of a completed Upload is there nor its bytes.

        False while the store is away: a File needs no store, and its controller checks the bytes.
        """
        file = compose_file(upload)
        if await self._storage.find(GatewayFile.plural, file["metadata"]["name"]) is not None:
            return False
        for key in list_keys(file)[:1]:
            try:
                await self._context.store.head(key)
            except ObjectMissing:
                return True
            except StoreUnavailable:
                return False
        return False

    async def _drop_parts(self, upload: Object, *, closing: str | None = None) -> None:
        """Remove all parts that no other File has, and release what was reserved for them."""
        account, name = upload["spec"]["request"]["accountName"], upload["metadata"]["name"]
        await self._storage.release(account, "files", name)
        kept = await self._storage.find_kept(name, closing=closing)
        with self._context.termination.giving_up(GatewayUpload.plural, upload, "its parts"):
            await self._storage.remove_folder(upload_folder(account, name), kept=kept)
        self._context.failpoints.reach("after-upload-parts")

    async def _mark(self, upload: Object, file: Object | None = None) -> None:
        context, outcome = self._context, upload["spec"]["outcome"]
        upload = await self._storage.remove_finalizer(GatewayUpload.plural, upload)
        context.failpoints.reach("after-upload-finalizer")
        status, reason, message = _ENDS[outcome]
        now = format_time(context.now())
        generation = upload["metadata"].get("generation", 1)
        change: dict[str, Any] = {
            "observedGeneration": generation,
            "phase": outcome,
            "work": SETTLED,
            "completionTime": now,
            "conditions": update_conditions(
                (upload.get("status") or {}).get("conditions") or (),
                [
                    (ConditionType.SUCCEEDED, status, reason, message),
                    (ConditionType.FINISHED, "True", reason, message),
                ],
                generation=generation,
                now=now,
            ),
        }
        if file is not None:
            change |= name_file(file)
        try:
            await context.kube.patch_status(GatewayUpload.plural, upload, change)
        except ObjectNotFound:
            # it was being deleted, and is gone with its finalizer
            _log.info("upload gone", object=upload["metadata"]["name"])
        context.metrics.uploads_ended.labels(outcome.lower()).inc()
        context.failpoints.reach("after-upload-settled")


class UploadController(Reconciler[Object]):
    """Uploads of this replica's shards."""

    def __init__(self, storage: FileStorage, settlement: Settlement) -> None:
        context = self._context = storage.context
        super().__init__(context.metrics.work_failures.inc)
        self._storage = storage
        self._settlement = settlement
        self._ends: dict[str, float] = {}
        self._outages = Outages()
        context.metrics.uploads_open.set_function(lambda: len(self._ends))

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self.forget(name)
            return
        self._ends[name] = read_expiry(obj)
        left = self._ends[name] - self._context.now().timestamp()
        if _only_waits(obj) and left > 0:
            self.queue.add_after(name, left)
        else:
            self.queue.add(name)

    def look_again(self) -> None:
        """Reconcile all uploads."""
        for name in list(self._ends):
            self.queue.add(name)

    async def find(self, name: str) -> Object | None:
        """Read the Upload."""
        return await self._storage.find(GatewayUpload.plural, name)

    async def step(self, obj: Object) -> Next:
        """Label, expire or settle the Upload."""
        name = obj["metadata"]["name"]
        async with self._outages.shown(name, partial(self._show_wait, name)):
            return await self._take_step(obj)

    async def _take_step(self, obj: Object) -> Next:
        kube = self._context.kube
        if is_settled(obj):
            await self._storage.remove_finalizer(GatewayUpload.plural, obj)
            return ON_CHANGE
        if obj["spec"].get("outcome", "Pending") == "Pending":
            outcome = self._find_outcome(obj)
            if outcome is None:
                lacking = find_lacking(obj)
                if lacking:
                    await kube.patch(GatewayUpload.plural, obj, {"metadata": lacking})
                return after(read_expiry(obj) - self._context.now().timestamp())
            obj = await kube.patch(GatewayUpload.plural, obj, {"spec": {"outcome": outcome}})
            self._context.failpoints.reach("after-upload-outcome")
        await self._settlement.settle(obj)
        return ON_CHANGE

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        super().forget(name)
        self._ends.pop(name, None)
        self._outages.forget(name)

    async def _show_wait(self, name: str, reason: Reason, text: str) -> None:
        """Show in `Succeeded`, and in an event, what the Upload's end waits for."""
        # read again: the step may have written the outcome
        obj = await self.find(name)
        if obj is None or is_settled(obj):
            return
        generation = obj["metadata"].get("generation", 1)
        current = (obj.get("status") or {}).get("conditions") or ()
        shown = {(c["type"], c["reason"], c["message"]) for c in current}
        if (ConditionType.SUCCEEDED, reason, text) in shown:
            return
        conditions = update_conditions(
            current,
            [(ConditionType.SUCCEEDED, "Unknown", reason, text)],
            generation=generation,
            now=format_time(self._context.now()),
        )
        status = {"observedGeneration": generation, "conditions": conditions}
        await self._context.kube.patch_status(GatewayUpload.plural, obj, status)
        self._context.events.warn(obj, reason=reason, message=text)

    def _find_outcome(self, obj: Object) -> str | None:
        """Return the outcome of a pending Upload that can no longer be completed."""
        if obj["metadata"].get("deletionTimestamp"):
            return "Cancelled"
        return "Expired" if self._context.now().timestamp() >= read_expiry(obj) else None


def _only_waits(obj: Object) -> bool:
    """Return whether there is nothing to do for it before its hour is over."""
    meta = obj["metadata"]
    return (
        obj["spec"].get("outcome", "Pending") == "Pending"
        and not meta.get("deletionTimestamp")
        and not find_lacking(obj)
    )
