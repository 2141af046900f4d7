"""A Batch's life: which step comes next, and the status each step records (contract §5.3).

Pure and level-triggered, as a task's is (`lifecycle`): who goes on after a kill reads the object.

    (none) ── VALIDATE ──▶ InProgress ── RUN ──▶ (runEnd) ── FINALIZE ──▶ Completed | Expired
       └──▶ Failed              └─ MARK ──▶ Cancelling ── … ──▶ Cancelled       ── CLOSE ──▶ Settled
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from gateway_core.api.batch import TERMINAL_PHASES, WINDOW_SECONDS, GatewayBatch
from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.ids import BATCH_FINALIZER
from gateway_core.api.money import to_decimal_text
from gateway_core.api.task import SETTLED
from gateway_core.api.times import format_time, parse_time
from gateway_core.batches.lines import Problem, tell_problems


class Phase:
    """Values of `status.phase`."""

    VALIDATING = "Validating"
    IN_PROGRESS = "InProgress"
    FINALIZING = "Finalizing"
    CANCELLING = "Cancelling"
    COMPLETED = "Completed"
    FAILED = "Failed"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"


class Step(Enum):
    """What is to be done with a batch next."""

    VALIDATE = "validate"  # check its lines, hold its money, record that it is in progress
    RUN = "run"  # run what is left of its lines
    MARK = "mark"  # it is to be cancelled: record that
    ABANDON = "abandon"  # it is cancelled before it ran: it ends without Files
    FINALIZE = "finalize"  # its run is over: write its Files, then end it
    CLOSE = "close"  # it has ended: settle, fold its charge, remove its results, let go of it
    NOTHING = "nothing"


_REASONS: Mapping[str, Reason] = {
    Phase.COMPLETED: Reason.COMPLETED,
    Phase.EXPIRED: Reason.EXPIRED,
    Phase.CANCELLED: Reason.CANCELLED,
}


def next_step(batch: GatewayBatch) -> Step:
    """The step that the batch is due for."""
    status = batch.status
    if status.phase in TERMINAL_PHASES:
        settled = status.work == SETTLED and BATCH_FINALIZER not in batch.metadata.finalizers
        return Step.NOTHING if settled else Step.CLOSE
    if is_unwanted(batch) and status.cancelling_time is None:
        return Step.MARK
    if status.run_end is not None:
        return Step.FINALIZE
    if status.start_time is not None:
        return Step.RUN
    return Step.VALIDATE if status.cancelling_time is None else Step.ABANDON


def is_unwanted(batch: GatewayBatch) -> bool:
    """Whether the batch is to end early."""
    deleted = batch.metadata.deletion_timestamp is not None
    return deleted or batch.spec.desired_state == "Cancelled"


def is_running(batch: GatewayBatch) -> bool:
    """Whether its lines are run: it has begun, and nobody has fixed how its run ended."""
    status = batch.status
    over = status.run_end is not None or status.phase in TERMINAL_PHASES
    return status.start_time is not None and not over


def find_deadline(batch: GatewayBatch) -> datetime:
    """When lines are run no more (`expires_at`)."""
    return parse_time(batch.metadata.creation_timestamp) + timedelta(seconds=WINDOW_SECONDS)


def charge_lines(batch: GatewayBatch, completed: int) -> int:
    """Micro-dollars for so many lines with an answer of 2xx: each its part of what was held."""
    total = batch.status.counts.total if batch.status.counts else 0
    return (batch.status.reserved_micros or 0) // total * completed if total else 0


def record_start(
    batch: GatewayBatch,
    *,
    model_id: str,
    service: str,
    total: int,
    reserved: int,
    now: datetime,
) -> dict[str, Any]:
    """The status of a batch whose lines are good and whose money is held."""
    text = f"{total} requests are run"
    return {
        **_head(batch, Phase.IN_PROGRESS, "Unknown", Reason.RUNNING, text, now),
        "startTime": format_time(now),
        "modelId": model_id,
        "service": service,
        "counts": _count(total, 0, 0),
        "reservedMicros": reserved,
    }


def record_failure(
    batch: GatewayBatch,
    reason: Reason,
    problems: Iterable[Problem],
    total: int,
    now: datetime,
    model_id: str | None = None,
) -> dict[str, Any]:
    """The terminal status of a batch whose input cannot be run; it costs nothing."""
    errors = tell_problems(problems)
    text = errors[0]["message"] if errors else "the input cannot be run"
    if len(errors) > 1:
        text += f" ({len(errors)} problems in all)"
    model = {"modelId": model_id} if model_id else {}
    return {
        **_head(batch, Phase.FAILED, "False", reason, text, now),
        **_end(0, now),
        **model,
        "outputFileName": None,
        "errorFileName": None,
        "counts": _count(total, 0, 0),
        "errors": errors,
    }


def record_progress(
    batch: GatewayBatch,
    completed: int,
    failed: int,
    waits: tuple[Reason, str] | None,
    now: datetime,
) -> dict[str, Any]:
    """The status of a batch under way; `waits` is what holds it up, if something does."""
    total = batch.status.counts.total if batch.status.counts else 0
    reason, text = waits or (Reason.RUNNING, f"{total} requests are run")
    if batch.status.cancelling_time is not None:
        reason, text = Reason.CANCELLING, "requests under way are brought to an end"
    counts = {"counts": _count(total, completed, failed)}
    return {**counts, **_conditions(batch, "Unknown", reason, text, now)}


def record_cancelling(batch: GatewayBatch, now: datetime) -> dict[str, Any]:
    """The status of a batch that is to be cancelled."""
    text = "requests under way are brought to an end"
    return {
        **_head(batch, Phase.CANCELLING, "Unknown", Reason.CANCELLING, text, now),
        "cancellingTime": format_time(now),
    }


def record_run_end(
    batch: GatewayBatch,
    run_end: str,
    results: Mapping[str, Any],
    *,
    output_name: str,
    error_name: str,
    now: datetime,
) -> dict[str, Any]:
    """The status as the last line has ended, or no more are run: from here on nothing changes it.

    `results` refers to the list of what the Files are made of.
    """
    common = {
        "runEnd": run_end,
        "results": dict(results),
        "outputFileName": output_name,
        "errorFileName": error_name,
    }
    text = "the results are put in order"
    if run_end != Phase.COMPLETED or batch.status.cancelling_time is not None:
        return {**common, **_conditions(batch, "Unknown", Reason.FINALIZING, text, now)}
    return {
        **_head(batch, Phase.FINALIZING, "Unknown", Reason.FINALIZING, text, now),
        **common,
        "finalizingTime": format_time(now),
    }


def record_end(
    batch: GatewayBatch,
    *,
    completed: int,
    failed: int,
    sent: int,
    output_name: str | None,
    error_name: str | None,
    now: datetime,
) -> dict[str, Any]:
    """The terminal status of a batch that has run; a File without lines is not there.

    `sent` are the lines that were sent; where a run is cut short, `failed` has others too.
    """
    status = batch.status
    phase = status.run_end or Phase.CANCELLED
    if status.cancelling_time is not None:
        phase = Phase.CANCELLED
    text = f"{completed} requests completed, {failed} failed"
    succeeded = "True" if phase == Phase.COMPLETED else "False"
    ran = status.start_time is not None
    counts = _count(completed + failed, completed, failed)
    return {
        **_head(batch, phase, succeeded, _REASONS[phase], text, now),
        **_end(charge_lines(batch, completed), now),
        **({"counts": {**counts, "sent": sent}} if ran else {}),
        "outputFileName": output_name,
        "errorFileName": error_name,
    }


def _end(charged: int, now: datetime) -> dict[str, Any]:
    return {
        "chargedMicros": charged,
        "cost": to_decimal_text(charged),
        "completionTime": format_time(now),
    }


def _count(total: int, completed: int, failed: int) -> dict[str, int]:
    return {"total": total, "completed": completed, "failed": failed}


def _head(
    batch: GatewayBatch, phase: str, succeeded: str, reason: Reason, message: str, now: datetime
) -> dict[str, Any]:
    finished = phase in TERMINAL_PHASES
    return {"phase": phase, **_conditions(batch, succeeded, reason, message, now, finished)}


def _conditions(
    batch: GatewayBatch,
    succeeded: str,
    reason: Reason,
    message: str,
    now: datetime,
    finished: bool = False,
) -> dict[str, Any]:
    message = message[:1024]
    changes = [
        (ConditionType.SUCCEEDED, succeeded, reason, message),
        (ConditionType.FINISHED, "True" if finished else "False", reason, message),
    ]
    current = [
        condition.model_dump(by_alias=True, exclude_none=True)
        for condition in batch.status.conditions or ()
    ]
    generation = batch.metadata.generation
    conditions = update_conditions(current, changes, generation=generation, now=format_time(now))
    return {"observedGeneration": generation, "conditions": conditions}
