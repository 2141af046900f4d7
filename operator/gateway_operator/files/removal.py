"""Sees a deleted file out: its room is given back, its bytes go, and last its object.

Each step may be repeated, and the last is the mark that the others are done. The finalizer stays
while the store is away: an object that is gone would leave bytes that nobody asks after until the
next reconciliation, so an admin is told instead and may take the finalizer away himself.
"""

import time

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.resource import Object, upload_folder
from gateway_core.api.upload import GatewayUpload
from gateway_core.storage.content import find_foreign, list_keys, pool_of
from gateway_core.storage.objects import StoreUnavailable
from gateway_operator.files.storage import MOST_KEYS, FileStorage
from gateway_operator.uploads.settlement import Settlement

GRACE_SECONDS = 60.0
"""How long after a batch file's deletion a batch may still be recorded that was admitted before:
the Kubernetes API may take its create for 60 s, long after the gateway's gave up waiting."""
BATCH_SECONDS = 10.0
"""From one look for batches that read a deleted file to the next."""
TOLD_SECONDS = 600.0
"""How long bytes may resist before an admin is told, and from one event to the next."""


class Removal:
    """Takes the steps of a deletion; used by the controller and the reconciliation."""

    def __init__(
        self, tools: FileStorage, settlement: Settlement, *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._tools = tools
        self._settlement = settlement
        self._grace = grace_seconds
        self._told: dict[str, float] = {}

    async def remove(self, obj: Object) -> float | None:
        """Takes all steps; in how many seconds to come again where a batch reads the file.

        Raises WriteConflict, ObjectNotFound, StoreUnavailable, KubernetesUnavailable.
        """
        tools, name = self._tools, obj["metadata"]["name"]
        request = obj["spec"]["request"]
        account = request["accountName"]
        if request["purpose"] == "batch":
            age = tools.age(obj["metadata"]["deletionTimestamp"])
            if age < self._grace:
                return self._grace - age
            if await self._is_read(name):
                return BATCH_SECONDS
        await tools.release(account, pool_of(obj), name)
        tools.failpoints.reach("after-file-release")
        try:
            await self._remove_bytes(obj)
        except StoreUnavailable as error:
            await self._complain(obj, error)
            raise
        tools.failpoints.reach("after-file-bytes")
        upload = await self._find_upload(obj)
        if upload is not None:
            await self._settlement.close(upload, obj)
            tools.failpoints.reach("after-file-upload")
        await tools.let_go(GatewayFile.plural, obj)
        self._told.pop(name, None)
        tools.metrics.files_ended.labels("removed").inc()
        tools.failpoints.reach("after-file-finalizer")
        return None

    async def _is_read(self, name: str) -> bool:
        """Whether a batch that is not settled names the file as its input."""
        page = await self._tools.kube.list_page(
            GatewayBatch.plural,
            limit=1,
            field_selector=f"spec.request.inputFileName={name},status.work!=Settled",
            metadata_only=True,
        )
        return bool(page.items)

    async def _remove_bytes(self, obj: Object) -> None:
        """Removes the segments, of those that are the file's own."""
        foreign = set(find_foreign(obj))
        request = obj["spec"]["request"]
        if request.get("uploadName"):
            foreign |= await self._find_others(obj)
        keys = [key for key in list_keys(obj) if key not in foreign]
        for start in range(0, len(keys), MOST_KEYS):
            await self._tools.store.delete_many(keys[start : start + MOST_KEYS])

    async def _find_others(self, obj: Object) -> set[str]:
        """Keys of an Upload that became another file, or none."""
        request = obj["spec"]["request"]
        upload = await self._tools.find(GatewayUpload.plural, request["uploadName"])
        if upload is None or _names_file(upload, obj):
            return set()
        folder = upload_folder(request["accountName"], request["uploadName"])
        return {key for key in list_keys(obj) if key.startswith(folder)}

    async def _find_upload(self, obj: Object) -> Object | None:
        """The Upload whose File it is and which is not settled."""
        name = obj["spec"]["request"].get("uploadName")
        upload = await self._tools.find(GatewayUpload.plural, name) if name else None
        return upload if upload is not None and _names_file(upload, obj) else None

    async def _complain(self, obj: Object, error: StoreUnavailable) -> None:
        """Tells an admin of bytes that cannot be removed for long, now and again."""
        name, now = obj["metadata"]["name"], time.monotonic()
        if self._tools.age(obj["metadata"]["deletionTimestamp"]) < TOLD_SECONDS:
            return
        if now - self._told.get(name, float("-inf")) >= TOLD_SECONDS:
            self._told[name] = now
            text = f"the file stays until its bytes can be removed: {error}"
            await self._tools.kube.report_event(obj, reason="BytesNotRemoved", message=text)


def _names_file(upload: Object, file: Object) -> bool:
    """Whether the Upload was completed as that file of the same account."""
    spec, request = upload["spec"], file["spec"]["request"]
    completion = spec.get("completion") or {}
    return (completion.get("fileName"), spec["request"]["accountName"]) == (
        file["metadata"]["name"],
        request["accountName"],
    )
