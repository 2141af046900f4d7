"""Uploads: the state machine (contract §4), and how an Upload ends in one File."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

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
from gateway_core.files.quota import StorageGate
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import ObjectNotFound

MOST_BYTES: Final[Mapping[str, int]] = {"user_data": USER_DATA_BYTES, "batch": 209_715_200}
"""The most bytes of a File that comes by an Upload, by its purpose (specification, Limits)."""
MOST_PART_BYTES = 67_108_864


"""A GatewayUpload as the Kubernetes API has it."""

_WORDS: Final = {
    "Pending": "pending",
    "Completed": "completed",
    "Cancelled": "cancelled",
    "Expired": "expired",
}


class UploadConflict(Conflict):
    """Another outcome has won (§4.4)."""

    code = "upload_state_conflict"

    def __init__(self, obj: Mapping[str, Any]) -> None:
        told = _WORDS[obj["spec"].get("outcome", "Pending")]
        super().__init__(f"Upload {name_to_id(obj['metadata']['name'])} is already {told}.")


class Step(Enum):
    """What a request is to do next."""

    GO_ON = "it is pending: the outcome is the request's to write"
    EXPIRE = "its hour is over: that is written first, and the request is judged anew"
    REPEAT = "the outcome that is asked for stands"


def read_creation(obj: Mapping[str, Any]) -> int:
    """When the object was made, in Unix seconds."""
    return int(datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp())


def read_expiry(obj: Mapping[str, Any]) -> int:
    """From when on it can no longer be completed, in Unix seconds (§4)."""
    return read_creation(obj) + LIFETIME_SECONDS


def is_pending(obj: Mapping[str, Any]) -> bool:
    """Whether no outcome is written yet; its hour may be over."""
    return _outcome(obj) == "Pending"


def is_overdue(obj: Mapping[str, Any], now: float) -> bool:
    """Whether it is pending although its hour is over; `now` in Unix seconds (§4.5)."""
    return is_pending(obj) and now >= read_expiry(obj)


def judge_part(obj: Mapping[str, Any], now: float) -> Step:
    """What a part is to do; UploadConflict where it comes too late (§4.2)."""
    return _judge(obj, now, wanted=None)


def judge_cancellation(obj: Mapping[str, Any], now: float) -> Step:
    """What a cancellation is to do; UploadConflict where another outcome stands (§4.4)."""
    return _judge(obj, now, wanted="Cancelled")


def judge_completion(obj: Mapping[str, Any], part_ids: Sequence[str], now: float) -> Step:
    """What a completion by these parts is to do; UploadConflict, also after other parts (§4.4)."""
    step = _judge(obj, now, wanted="Completed")
    if step is Step.REPEAT:
        stands = [part["id"] for part in obj["spec"]["completion"]["parts"]]
        if stands != list(part_ids):
            raise UploadConflict(obj)
    return step


def count_room(obj: Mapping[str, Any]) -> int:
    """How many bytes may arrive in parts: more than the File's, as clients repeat them (§4.2)."""
    return 2 * int(obj["spec"]["request"]["bytes"]) + MOST_PART_BYTES


def is_settled(obj: Mapping[str, Any]) -> bool:
    """Whether the operator has seen to all that follows from the outcome."""
    return (obj.get("status") or {}).get("work") == "Settled"


def is_withdrawn(obj: Mapping[str, Any]) -> bool:
    """Whether its create was refused after all: there was no room when it was recorded."""
    return WITHDRAWN_ANNOTATION in (obj["metadata"].get("annotations") or {})


def read_member(obj: Mapping[str, Any]) -> tuple[str, int] | None:
    """What the account's storage holds for the Upload: the member's name and its bytes.

    Its own while it is pending. Once it is completed its File's, which the File's object stands for
    as well, from when the Upload is settled on alone. None where nothing is held.
    """
    spec = obj["spec"]
    size = int(spec["request"]["bytes"])
    outcome = _outcome(obj)
    if outcome == "Pending":
        return obj["metadata"]["name"], size
    if outcome == "Completed" and not is_settled(obj):
        return spec["completion"]["fileName"], size
    return None


def render_upload(obj: Mapping[str, Any], file: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The Upload as clients see it (annex B.1), with its File once it is completed."""
    request = obj["spec"]["request"]
    return {
        "id": name_to_id(obj["metadata"]["name"]),
        "object": "upload",
        "bytes": request["bytes"],
        "created_at": read_creation(obj),
        "expires_at": read_expiry(obj),
        "filename": request["filename"],
        "purpose": request["purpose"],
        "status": _WORDS[_outcome(obj)],
        "file": file,
    }


def render_part(part_id: str, upload_name: str, now: float) -> dict[str, Any]:
    """A part as clients see it (annex B.1)."""
    return {
        "id": part_id,
        "object": "upload.part",
        "created_at": int(now),
        "upload_id": name_to_id(upload_name),
    }


def write_time(unix: float) -> str:
    """A time as resources carry it, in whole seconds."""
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
    """Writes outcomes, and sees to what follows from one that stands."""

    def __init__(
        self,
        kube: KubernetesClient,
        storage: StorageGate,
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
        """Has these parts, in their order, be the File `file_name`; as the Upload then stands.

        Compare-and-set, and raises the errors of `KubernetesClient.patch_status`; so do the others.
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

        Raises KubernetesUnavailable and WriteOutcomeUnknown: it may be there or not, ask again;
        ObjectNotFound where the Upload is gone meanwhile.
        """
        if is_settled(obj):
            return tell_file(obj)
        await self.end_reservation(obj)
        self._failpoints.reach("before-upload-file")
        file = await make_file(self._kube, self._files, obj)
        self._failpoints.reach("after-upload-file")
        if file is None:
            # settled meanwhile, with an object that has been deleted since
            return tell_file(await self._kube.get(GatewayUpload.plural, obj["metadata"]["name"]))
        return tell_file(obj, file)

    async def _write(
        self, obj: Object, spec: dict[str, Any], marks: Mapping[str, str] | None = None
    ) -> Object:
        self._failpoints.reach("before-upload-outcome")
        patch = {"spec": spec, **({"metadata": {"annotations": dict(marks)}} if marks else {})}
        decided = await self._kube.patch(GatewayUpload.plural, obj, patch)
        self._failpoints.reach("after-upload-outcome")
        return decided


async def make_file(kube: KubernetesClient, files: FileRecorder, obj: Object) -> Object | None:
    """The File of the completed Upload `obj`, made from its manifest where it is not there.

    It may be being deleted. None where it was made too late: the operator sees a File before it
    marks the Upload Settled, and marks it before it lets the File go. So one that was made although
    the mark names another is one that was deleted, and is taken away.

    Raises what `FileRecorder.create` and the port of records do: ask again.
    """
    made = await files.create(compose_file(obj))
    if made.is_new and await _is_too_late(kube, obj, made.object):
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


async def _is_too_late(kube: KubernetesClient, obj: Object, file: Object) -> bool:
    """Whether the Upload was settled with another object of the File's name by now."""
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
    """When it was completed, in Unix seconds."""
    return datetime.fromisoformat(obj["spec"]["completion"]["time"]).timestamp()
