"""What follows from an Upload's outcome: its File exists, or its parts are removed.

Each step may be repeated; `work: Settled` is the mark that the others are done, and written last,
with the uid of the File's object: a File that is made from the manifest after that differs in it.
"""

from typing import Any

import structlog

from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object, upload_folder
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.files.files import FileRecorder
from gateway_core.files.uploads import is_settled, make_file
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.storage.content import list_keys
from gateway_operator.files.storage import FileStorage

_ENDS = {
    "Completed": ("True", Reason.COMPLETED, "its file is there"),
    "Cancelled": ("False", Reason.CANCELLED, "it was cancelled"),
    "Expired": ("False", Reason.EXPIRED, "it was not completed within its hour"),
}

_log = structlog.get_logger(__name__)


def name_file(file: Object) -> dict[str, Any]:
    """The fields of an Upload's status that identify its File's object."""
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
        file = await make_file(self._context.kube, self._files, upload)
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

    async def _drop_parts(self, upload: Object, *, closing: str | None = None) -> None:
        """Remove all parts that no other File has, and release what was reserved for them."""
        account, name = upload["spec"]["request"]["accountName"], upload["metadata"]["name"]
        await self._storage.release(account, "files", name)
        kept = await self._storage.find_kept(name, closing=closing)
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
