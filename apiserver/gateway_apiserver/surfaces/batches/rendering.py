"""The Batch on the wire, rendered from the object alone (contract §5, annex B.2). Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway_apiserver.surfaces.batches.models import (
    Batch,
    BatchError,
    BatchErrors,
    BatchStatus,
    RequestCounts,
)
from gateway_core.api.batch import TERMINAL_PHASES, WINDOW_SECONDS
from gateway_core.api.ids import CANCELLED_AT_ANNOTATION, name_to_id

_ENDS: Mapping[str, str] = {
    "Completed": "completed_at",
    "Failed": "failed_at",
    "Expired": "expired_at",
    "Cancelled": "cancelled_at",
}
_WORDS: Mapping[str, BatchStatus] = {
    "Validating": "validating",
    "InProgress": "in_progress",
    "Finalizing": "finalizing",
    "Cancelling": "cancelling",
    "Completed": "completed",
    "Failed": "failed",
    "Expired": "expired",
    "Cancelled": "cancelled",
}


def has_ended(obj: Mapping[str, Any]) -> bool:
    """Return whether the Batch has a terminal phase."""
    return _read_phase(obj) in TERMINAL_PHASES


def read_status(obj: Mapping[str, Any]) -> BatchStatus:
    """Return the status on the wire; `cancelling` as soon as cancellation is requested."""
    if not has_ended(obj) and obj["spec"].get("desiredState") == "Cancelled":
        return "cancelling"
    return _WORDS[_read_phase(obj)]


def render_batch(obj: Mapping[str, Any]) -> Batch:
    """Return the Batch of a GatewayBatch."""
    meta, request = obj["metadata"], obj["spec"]["request"]
    status: Mapping[str, Any] = obj.get("status") or {}
    phase, ended = _read_phase(obj), has_ended(obj)
    created = _to_seconds(meta["creationTimestamp"])
    annotations = meta.get("annotations") or {}
    # the API notes the time of the request, the operator when it noticed the cancellation
    cancelling = annotations.get(CANCELLED_AT_ANNOTATION) or status.get("cancellingTime")
    ends = dict.fromkeys(_ENDS.values())
    if ended:
        ends[_ENDS[phase]] = _read_time(status.get("completionTime"))
    counts = status.get("counts") or {}
    # the names of its Files are recorded before the Files exist
    names = status if ended else {}
    return Batch(
        id=name_to_id(meta["name"]),
        object="batch",
        endpoint=request["endpoint"],
        model=status.get("modelId"),
        errors=_render_errors(status.get("errors")),
        input_file_id=name_to_id(request["inputFileName"]),
        completion_window=request["completionWindow"],
        status=read_status(obj),
        output_file_id=_to_id(names.get("outputFileName")),
        error_file_id=_to_id(names.get("errorFileName")),
        created_at=created,
        in_progress_at=_read_time(status.get("startTime")),
        expires_at=created + WINDOW_SECONDS,
        finalizing_at=_read_time(status.get("finalizingTime")),
        completed_at=ends["completed_at"],
        failed_at=ends["failed_at"],
        expired_at=ends["expired_at"],
        cancelling_at=_read_time(cancelling),
        cancelled_at=ends["cancelled_at"],
        request_counts=RequestCounts(
            total=counts.get("total", 0),
            completed=counts.get("completed", 0),
            failed=counts.get("failed", 0),
        ),
        usage=None,
        metadata=request.get("metadata"),
    )


def _read_phase(obj: Mapping[str, Any]) -> str:
    """Return the phase; an unknown one, from a later release, counts as running."""
    phase = str((obj.get("status") or {}).get("phase") or "Validating")
    return phase if phase in _WORDS else "InProgress"


def _render_errors(errors: Any) -> BatchErrors | None:
    if not errors:
        return None
    data = [
        BatchError(
            code=error["code"],
            message=error["message"],
            param=error.get("param"),
            line=error.get("line"),
        )
        for error in errors
    ]
    return BatchErrors(object="list", data=data)


def _to_id(name: str | None) -> str | None:
    return None if name is None else name_to_id(name)


def _read_time(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return _to_seconds(text)
    except ValueError:
        return None  # annotations can be edited by hand


def _to_seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
