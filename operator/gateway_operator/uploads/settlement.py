"""What follows from an Upload's outcome: its File is there or its parts are gone.

Each step may be repeated; `work: Settled` is the mark that the others are done, and written last,
with the uid of the File's object: one that is made from the manifest after that is known by it.
"""

from typing import Any

import structlog

from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object, upload_folder
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_time
from gateway_core.api.upload import GatewayUpload
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
    """What an Upload's status says of its File's object."""
    meta = file["metadata"]
    return {"fileUid": meta["uid"], "fileCreationTime": meta["creationTimestamp"]}


class Settlement:
    """Settles uploads whose outcome stands. Raises what the ports raise."""

    def __init__(self, tools: FileStorage) -> None:
        self._tools = tools

    async def settle(self, upload: Object) -> None:
        """Do what follows from the outcome, which is there. WriteConflict where it has changed."""
        if upload["spec"]["outcome"] == "Completed":
            await self._settle_completed(upload)
        else:
            await self._drop(upload)
            await self._mark(upload)

    async def close(self, upload: Object, file: Object) -> None:
        """Settles a completed Upload whose File is being deleted: nothing is left of either.

        So nobody makes that File again from the manifest. To be called once no batch reads it.
        """
        await self._drop(upload, closing=file["metadata"]["name"])
        await self._tools.release(
            upload["spec"]["request"]["accountName"], "files", file["metadata"]["name"]
        )
        if not is_settled(upload):
            await self._mark(upload, file)

    async def _settle_completed(self, upload: Object) -> None:
        tools = self._tools
        file = await make_file(tools.kube, tools.files, upload)
        if file is None:
            # another has settled it while this process was held up
            return
        name = upload["metadata"]["name"]
        tools.failpoints.reach("after-upload-file")
        account = upload["spec"]["request"]["accountName"]
        if file["metadata"].get("deletionTimestamp"):
            # a batch may still read it: the deletion of the File closes the Upload after that
            await tools.release(account, "files", name)
            await tools.release(account, "files", file["metadata"]["name"])
            return
        await tools.move(account, name, file["metadata"]["name"])
        tools.failpoints.reach("after-upload-move")
        kept = frozenset(list_keys(file)) | await tools.find_kept(name)
        await tools.remove_folder(upload_folder(account, name), kept=kept)
        tools.failpoints.reach("after-upload-parts")
        await self._mark(upload, file)
        left = await tools.find(GatewayFile.plural, file["metadata"]["name"])
        if left is None or left["metadata"].get("deletionTimestamp"):
            await tools.release(account, "files", file["metadata"]["name"])

    async def _drop(self, upload: Object, *, closing: str | None = None) -> None:
        """Removes all parts that no other File has, and gives back what was reserved for them."""
        account, name = upload["spec"]["request"]["accountName"], upload["metadata"]["name"]
        await self._tools.release(account, "files", name)
        kept = await self._tools.find_kept(name, closing=closing)
        await self._tools.remove_folder(upload_folder(account, name), kept=kept)
        self._tools.failpoints.reach("after-upload-parts")

    async def _mark(self, upload: Object, file: Object | None = None) -> None:
        tools, outcome = self._tools, upload["spec"]["outcome"]
        upload = await tools.let_go(GatewayUpload.plural, upload)
        tools.failpoints.reach("after-upload-finalizer")
        status, reason, message = _ENDS[outcome]
        now = format_time(tools.now())
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
            await tools.kube.patch_status(GatewayUpload.plural, upload, change)
        except ObjectNotFound:
            # it was being deleted, and has gone with its finalizer
            _log.info("upload gone", object=upload["metadata"]["name"])
        tools.metrics.uploads_ended.labels(outcome.lower()).inc()
        tools.failpoints.reach("after-upload-settled")
