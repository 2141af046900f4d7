"""What becomes of an Upload (contract §4): which request may do what, and what is told of it.

Pure: everything follows from the object and the clock. Used by the API's requests, and by the
operator for what nobody asks for any more.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from gateway_core.contract.errors import Conflict
from gateway_core.contract.names import WITHDRAWN_ANNOTATION, name_to_id
from gateway_core.contract.upload import LIFETIME_SECONDS
from gateway_core.domain.files import USER_DATA_BYTES

MOST_BYTES: Final[Mapping[str, int]] = {"user_data": USER_DATA_BYTES, "batch": 209_715_200}
"""The most bytes of a File that comes by an Upload, by its purpose (specification, Limits)."""
MOST_PART_BYTES = 67_108_864

Object = Mapping[str, Any]
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

    def __init__(self, obj: Object) -> None:
        told = _WORDS[obj["spec"].get("outcome", "Pending")]
        super().__init__(f"Upload {name_to_id(obj['metadata']['name'])} is already {told}.")


class Step(Enum):
    """What a request is to do next."""

    GO_ON = "it is pending: the outcome is the request's to write"
    EXPIRE = "its hour is over: that is written first, and the request is judged anew"
    REPEAT = "the outcome that is asked for stands"


def read_creation(obj: Object) -> int:
    """When the object was made, in Unix seconds."""
    return int(datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp())


def read_expiry(obj: Object) -> int:
    """From when on it can no longer be completed, in Unix seconds (§4)."""
    return read_creation(obj) + LIFETIME_SECONDS


def is_pending(obj: Object) -> bool:
    """Whether no outcome is written yet; its hour may be over."""
    return _outcome(obj) == "Pending"


def is_overdue(obj: Object, now: float) -> bool:
    """Whether it is pending although its hour is over; `now` in Unix seconds (§4.5)."""
    return is_pending(obj) and now >= read_expiry(obj)


def judge_part(obj: Object, now: float) -> Step:
    """What a part is to do; UploadConflict where it comes too late (§4.2)."""
    return _judge(obj, now, wanted=None)


def judge_cancellation(obj: Object, now: float) -> Step:
    """What a cancellation is to do; UploadConflict where another outcome stands (§4.4)."""
    return _judge(obj, now, wanted="Cancelled")


def judge_completion(obj: Object, part_ids: Sequence[str], now: float) -> Step:
    """What a completion by these parts is to do; UploadConflict, also after other parts (§4.4)."""
    step = _judge(obj, now, wanted="Completed")
    if step is Step.REPEAT:
        stands = [part["id"] for part in obj["spec"]["completion"]["parts"]]
        if stands != list(part_ids):
            raise UploadConflict(obj)
    return step


def count_room(obj: Object) -> int:
    """How many bytes may arrive in parts: more than the File's, as clients repeat them (§4.2)."""
    return 2 * int(obj["spec"]["request"]["bytes"]) + MOST_PART_BYTES


def is_settled(obj: Object) -> bool:
    """Whether the operator has seen to all that follows from the outcome."""
    return (obj.get("status") or {}).get("work") == "Settled"


def is_withdrawn(obj: Object) -> bool:
    """Whether its create was refused after all: there was no room when it was recorded."""
    return WITHDRAWN_ANNOTATION in (obj["metadata"].get("annotations") or {})


def read_member(obj: Object) -> tuple[str, int] | None:
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


def render_upload(obj: Object, file: Mapping[str, Any] | None = None) -> dict[str, Any]:
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


def _judge(obj: Object, now: float, *, wanted: str | None) -> Step:
    outcome = _outcome(obj)
    if outcome == "Pending":
        return Step.EXPIRE if is_overdue(obj, now) else Step.GO_ON
    if outcome == wanted:
        return Step.REPEAT
    raise UploadConflict(obj)


def _outcome(obj: Object) -> str:
    return str(obj["spec"].get("outcome", "Pending"))
