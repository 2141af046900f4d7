"""How an Upload ends, and what follows from it (contract §4): its File, what storage it holds.

One compare-and-set on `spec` is the outcome, whoever makes it. All that follows can be done again
by anybody at any time, and is: by the request that won, by each that repeats it, by the operator.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway_core.contract.names import WITHDRAWN_ANNOTATION
from gateway_core.contract.stored import ObjectRef, part_key
from gateway_core.contract.upload import GatewayUpload, PartRef
from gateway_core.domain.files import FileRecord, find_life
from gateway_core.domain.uploads import is_settled, write_time
from gateway_core.ports.records import Missing, Object, Records
from gateway_core.usecases.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.usecases.files import FileRecorder, NewFile, build_file
from gateway_core.usecases.storage import StorageGate


class UploadOutcomes:
    """Writes outcomes, and sees to what follows from one that stands."""

    def __init__(
        self,
        records: Records,
        storage: StorageGate,
        files: FileRecorder,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._records = records
        self._storage = storage
        self._files = files
        self._failpoints = failpoints

    async def complete(
        self, obj: Object, parts: Sequence[PartRef], file_name: str, now: float
    ) -> Object:
        """Has these parts, in their order, be the File `file_name`; as the Upload then stands.

        Compare-and-set: raises Outdated where it has changed since it was read, Missing,
        RecordUnavailable and RecordOutcomeUnknown as the port has them; so do the others.
        """
        manifest = {
            "fileName": file_name,
            "parts": [part.model_dump(by_alias=True, exclude_none=True) for part in parts],
            "time": write_time(now),
        }
        decided = await self._write(obj, {"outcome": "Completed", "completion": manifest})
        await self.end_reservation(decided)
        return decided

    async def cancel(self, obj: Object) -> Object:
        """Has nothing come of it; as `complete`."""
        decided = await self._write(obj, {"outcome": "Cancelled"})
        await self.end_reservation(decided)
        return decided

    async def withdraw(self, obj: Object) -> Object:
        """Cancels one whose create is refused after all, which its mark tells; as `complete`."""
        marks = {WITHDRAWN_ANNOTATION: "true"}
        decided = await self._write(obj, {"outcome": "Cancelled"}, marks)
        await self.end_reservation(decided)
        return decided

    async def expire(self, obj: Object) -> Object:
        """Has its hour be over; the caller has looked at the clock. As `complete`."""
        decided = await self._write(obj, {"outcome": "Expired"})
        await self.end_reservation(decided)
        return decided

    async def end_reservation(self, obj: Object) -> None:
        """Has the storage that an ended Upload has reserved be its File's, or free.

        Before the File's object is made, so that the bytes count once at every moment. Where the
        figures are away it is left to who does this next, or to their rebuild.
        """
        account, upload = obj["spec"]["request"]["accountName"], obj["metadata"]["name"]
        if obj["spec"]["outcome"] == "Completed":
            name = obj["spec"]["completion"]["fileName"]
            await self._storage.move(account, "files", upload, name)
        else:
            await self._storage.release(account, "files", upload)

    async def describe_file(self, obj: Object) -> FileRecord:
        """What clients are told of the File of a completed Upload, made where it is not there.

        The same before and after the File was deleted; a deleted one does not come back.

        Raises RecordUnavailable and RecordOutcomeUnknown: it may be there or not, ask again;
        Missing where the Upload is gone meanwhile.
        """
        if is_settled(obj):
            return tell_file(obj)
        await self.end_reservation(obj)
        self._failpoints.reach("before-upload-file")
        file = await make_file(self._records, self._files, obj)
        self._failpoints.reach("after-upload-file")
        if file is None:
            # settled meanwhile, with an object that has been deleted since
            return tell_file(await self._records.get(GatewayUpload.plural, obj["metadata"]["name"]))
        return tell_file(obj, file)

    async def _write(
        self, obj: Object, spec: dict[str, Any], marks: Mapping[str, str] | None = None
    ) -> Object:
        self._failpoints.reach("before-upload-outcome")
        patch = {"spec": spec, **({"metadata": {"annotations": dict(marks)}} if marks else {})}
        decided = await self._records.patch(GatewayUpload.plural, obj, patch)
        self._failpoints.reach("after-upload-outcome")
        return decided


async def make_file(records: Records, files: FileRecorder, obj: Object) -> Object | None:
    """The File of the completed Upload `obj`, made from its manifest where it is not there.

    It may be being deleted. None where it was made too late: the operator sees a File before it
    marks the Upload Settled, and marks it before it lets the File go. So one that was made although
    the mark names another is one that was deleted, and is taken away.

    Raises what `FileRecorder.create` and the port of records do: ask again.
    """
    made = await files.create(compose_file(obj))
    if made.is_new and await _is_too_late(records, obj, made.object):
        await files.delete(made.object, exact=False)
        return None
    return made.object


def compose_file(obj: Object) -> Object:
    """The GatewayFile of a completed Upload; the same whoever makes it, and however often."""
    return build_file(_describe_file(obj), _read_end(obj))


def tell_file(obj: Object, file: Object | None = None) -> FileRecord:
    """What clients are told of the File of a completed Upload.

    `file` is its object, perhaps being deleted; without it the Upload is settled or gone.
    """
    new = _describe_file(obj)
    if file is None:
        made = (obj.get("status") or {}).get("fileCreationTime")
    else:
        made = file["metadata"]["creationTimestamp"]
    created = int(_read_end(obj) if made is None else datetime.fromisoformat(made).timestamp())
    return FileRecord(
        name=new.name,
        account=new.account,
        purpose=new.purpose,
        filename=new.filename,
        bytes=obj["spec"]["request"]["bytes"],
        created_at=created,
        expires_at=None if new.life is None else created + new.life,
    )


async def _is_too_late(records: Records, obj: Object, file: Object) -> bool:
    """Whether the Upload was settled with another object of the File's name by now."""
    try:
        current = await records.get(GatewayUpload.plural, obj["metadata"]["name"])
    except Missing:
        return False
    counts = (current.get("status") or {}).get("fileUid")
    return is_settled(current) and counts != file["metadata"]["uid"]


def _describe_file(obj: Object) -> NewFile:
    request, completion = obj["spec"]["request"], obj["spec"]["completion"]
    account, upload = request["accountName"], obj["metadata"]["name"]
    return NewFile(
        name=completion["fileName"],
        account=account,
        purpose=request["purpose"],
        filename=request["filename"],
        segments=tuple(
            ObjectRef(
                key=part_key(account, upload, part["id"]),
                bytes=part["bytes"],
                sha256=part["sha256"],
                xxh3=part.get("xxh3"),
            )
            for part in completion["parts"]
        ),
        life=find_life(request["purpose"], request.get("expiresAfterSeconds")),
        key_name=request.get("keyName"),
        upload_name=upload,
    )


def _read_end(obj: Object) -> float:
    """When it was completed, in Unix seconds."""
    return datetime.fromisoformat(obj["spec"]["completion"]["time"]).timestamp()
