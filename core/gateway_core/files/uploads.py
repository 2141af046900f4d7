"""Uploads: the state machine (contract §4), and how an Upload ends in one File."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal

from gateway_core.api.errors import Conflict
from gateway_core.api.ids import WITHDRAWN_ANNOTATION, name_to_id
from gateway_core.api.resource import Object, ObjectRef, part_key
from gateway_core.api.upload import LIFETIME_SECONDS, GatewayUpload, PartRef
from gateway_core.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.files.files import (
    USER_DATA_BYTES,
    FileRecord,
    FileRecorder,
    NewFile,
    build_file,
    find_life,
)
from gateway_core.files.quota import StorageQuota
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound

MOST_BYTES: Final[Mapping[str, int]] = {"user_data": USER_DATA_BYTES, "batch": 209_715_200}
"""Most bytes of a File from an Upload, by purpose (specification, Limits)."""
MOST_PART_BYTES = 67_108_864

UploadStatus = Literal["pending", "completed", "cancelled", "expired"]
_WORDS: Final[Mapping[str, UploadStatus]] = {
    "Pending": "pending",
    "Completed": "completed",
    "Cancelled": "cancelled",
    "Expired": "expired",
}


class UploadConflict(Conflict):
    """Another outcome has been written (§4.4)."""

    code = "upload_state_conflict"

    def __init__(self, obj: Mapping[str, Any]) -> None:
        upload_id = name_to_id(obj["metadata"]["name"])
        super().__init__(f"Upload {upload_id} is already {read_status(obj)}.")


class Step(Enum):
    """Next step of a request."""

    GO_ON = "the Upload is pending: write the outcome"
    EXPIRE = "its hour is over: write that first, then judge the request again"
    REPEAT = "the requested outcome is written already"


def read_creation(obj: Mapping[str, Any]) -> int:
    """Creation time in Unix seconds."""
    return int(datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp())


def read_expiry(obj: Mapping[str, Any]) -> int:
    """End of the time in which it can be completed, in Unix seconds (§4)."""
    return read_creation(obj) + LIFETIME_SECONDS


def is_pending(obj: Mapping[str, Any]) -> bool:
    """Return whether no outcome is written, even if its hour is over."""
    return _outcome(obj) == "Pending"


def is_overdue(obj: Mapping[str, Any], now: float) -> bool:
    """Return whether it is pending beyond its hour; `now` in Unix seconds (§4.5)."""
    return is_pending(obj) and now >= read_expiry(obj)


def judge_part(obj: Mapping[str, Any], now: float) -> Step:
    """Next step of a request to add a part. UploadConflict after an outcome (§4.2)."""
    return _judge(obj, now, wanted=None)


def judge_cancellation(obj: Mapping[str, Any], now: float) -> Step:
    """Next step of a cancellation. UploadConflict after another outcome (§4.4)."""
    return _judge(obj, now, wanted="Cancelled")


def judge_completion(obj: Mapping[str, Any], part_ids: Sequence[str], now: float) -> Step:
    """Next step of a completion. UploadConflict after another outcome or other parts (§4.4)."""
    step = _judge(obj, now, wanted="Completed")
    if step is Step.REPEAT:
        written = [part["id"] for part in obj["spec"]["completion"]["parts"]]
        if written != list(part_ids):
            raise UploadConflict(obj)
    return step


def count_room(obj: Mapping[str, Any]) -> int:
    """Bytes that all parts may have: more than the File, since clients repeat parts (§4.2)."""
    return 2 * int(obj["spec"]["request"]["bytes"]) + MOST_PART_BYTES


def is_settled(obj: Mapping[str, Any]) -> bool:
    """Return whether the operator has completed the work that follows the outcome."""
    return (obj.get("status") or {}).get("work") == "Settled"


def is_withdrawn(obj: Mapping[str, Any]) -> bool:
    """Return whether its creation was refused: there was no room once the object was created."""
    return WITHDRAWN_ANNOTATION in (obj["metadata"].get("annotations") or {})


def read_member(obj: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the Upload's member in the account's storage: name and bytes; None without one.

    Its own while it is pending, its File's once it is completed. The File's object is the same
    member, and the only one once the Upload is settled.
    """
    spec = obj["spec"]
    size = int(spec["request"]["bytes"])
    outcome = _outcome(obj)
    if outcome == "Pending":
        return obj["metadata"]["name"], size
    if outcome == "Completed" and not is_settled(obj):
        return spec["completion"]["fileName"], size
    return None


def read_status(obj: Mapping[str, Any]) -> UploadStatus:
    """Return the status on the wire."""
    return _WORDS[_outcome(obj)]


def write_time(unix: float) -> str:
    """Return a time in the format of resources, in whole seconds."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _judge(obj: Mapping[str, Any], now: float, *, wanted: str | None) -> Step:
    outcome = _outcome(obj)
    if outcome == "Pending":
        return Step.EXPIRE if is_overdue(obj, now) else Step.GO_ON
    if outcome == wanted:
        return Step.REPEAT
    raise UploadConflict(obj)


def _outcome(obj: Mapping[str, Any]) -> str:
    return str(obj["spec"].get("outcome", "Pending"))


class UploadOutcomes:
    """Writes outcomes, and carries out what follows from them."""

    def __init__(
        self,
        kube: KubernetesClient,
        storage: StorageQuota,
        files: FileRecorder,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._kube = kube
        self._storage = storage
        self._files = files
        self._failpoints = failpoints

    async def complete(
        self, obj: Object, parts: Sequence[PartRef], file_name: str, now: float
    ) -> Object:
        """Complete the Upload with these parts as the File `file_name`; the new object.

        Compare-and-set, as all methods that write; raises the errors of `KubernetesClient.patch`.
        """
        manifest = {
            "fileName": file_name,
            "parts": [part.model_dump(by_alias=True, exclude_none=True) for part in parts],
            "time": write_time(now),
        }
        return await self._write(obj, {"outcome": "Completed", "completion": manifest})

    async def cancel(self, obj: Object) -> Object:
        """Cancel the Upload."""
        return await self._write(obj, {"outcome": "Cancelled"})

    async def withdraw(self, obj: Object) -> Object:
        """Cancel an Upload whose creation is refused, and mark it so."""
        return await self._write(obj, {"outcome": "Cancelled"}, {WITHDRAWN_ANNOTATION: "true"})

    async def expire(self, obj: Object) -> Object:
        """Expire the Upload; the caller has checked the time."""
        return await self._write(obj, {"outcome": "Expired"})

    async def end_reservation(self, obj: Object) -> None:
        """Transfer an ended Upload's reservation to its File, or free it.

        It happens before the File is created, so that the bytes always count once. Where the
        counters are unavailable, the next caller does it, or their rebuild.
        """
        account, upload = obj["spec"]["request"]["accountName"], obj["metadata"]["name"]
        if obj["spec"]["outcome"] == "Completed":
            name = obj["spec"]["completion"]["fileName"]
            await self._storage.move(account, "files", upload, name)
        else:
            await self._storage.release(account, "files", upload)

    async def describe_file(self, obj: Object) -> FileRecord:
        """Return the File of a completed Upload, created if needed; the same after it was deleted.

        A deleted File is not created again. Raises KubernetesUnavailable and WriteOutcomeUnknown,
        after which the call can be repeated; ObjectNotFound where the Upload is gone meanwhile.
        """
        if is_settled(obj):
            return read_upload_file(obj)
        # repeated by every reader: the writer of the outcome may have been killed before it
        await self.end_reservation(obj)
        self._failpoints.reach("before-upload-file")
        file = await make_file(self._kube, self._files, obj)
        self._failpoints.reach("after-upload-file")
        if file is None:
            # settled meanwhile with another object, which has been deleted since
            return read_upload_file(
                await self._kube.get(GatewayUpload.plural, obj["metadata"]["name"])
            )
        return read_upload_file(obj, file)

    async def _write(
        self, obj: Object, spec: dict[str, Any], marks: Mapping[str, str] | None = None
    ) -> Object:
        self._failpoints.reach("before-upload-outcome")
        patch = {"spec": spec, **({"metadata": {"annotations": dict(marks)}} if marks else {})}
        decided = await self._kube.patch(GatewayUpload.plural, obj, patch)
        self._failpoints.reach("after-upload-outcome")
        await self.end_reservation(decided)
        return decided


async def make_file(kube: KubernetesClient, files: FileRecorder, obj: Object) -> Object | None:
    """Return the File of the completed Upload `obj`, created from its manifest if needed.

    It may be in deletion. None where it was created too late: the operator marks the Upload Settled
    with the File's uid before it lets that File go. So a File created although the mark has another
    uid repeats a deleted one, and is deleted.

    Raises what `FileRecorder.create` and `kube` raise; the call can be repeated.
    """
    made = await files.create(compose_file(obj))
    if made.is_new and await _is_too_late(kube, obj, made.object):
        await files.delete(made.object, exact=False)
        return None
    return made.object


def compose_file(obj: Object) -> Object:
    """Return the GatewayFile of a completed Upload; always the same."""
    return build_file(_describe_file(obj), _read_end(obj))


def read_upload_file(obj: Object, file: Object | None = None) -> FileRecord:
    """Return the record of a completed Upload's File.

    `file` is its object, maybe in deletion; without it the Upload is settled.
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


async def _is_too_late(kube: KubernetesClient, obj: Object, file: Object) -> bool:
    """Return whether the Upload is settled with another object of the File's name."""
    try:
        current = await kube.get(GatewayUpload.plural, obj["metadata"]["name"])
    except ObjectNotFound:
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
    """Completion time in Unix seconds."""
    return datetime.fromisoformat(obj["spec"]["completion"]["time"]).timestamp()
