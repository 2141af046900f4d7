"""State machine of a Batch: the next step, and the status that each step records (contract §5.3).

Pure and level-triggered, as a task's (`tasks.lifecycle`).

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
from gateway_core.api.words import count_noun
from gateway_core.batches.lines import Problem, render_problems


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
    """Next step of a batch."""

    VALIDATE = "validate"  # check its lines, hold its money, record that it is in progress
    RUN = "run"  # run the remaining lines
    MARK = "mark"  # cancellation is requested: record that
    ABANDON = "abandon"  # cancelled before it ran: end it without Files
    FINALIZE = "finalize"  # its run is over: write its Files, then end it
    CLOSE = "close"  # it has ended: settle, aggregate its charge, remove results and finalizer
    NOTHING = "nothing"


_REASONS: Mapping[str, Reason] = {
    Phase.COMPLETED: Reason.COMPLETED,
    Phase.EXPIRED: Reason.EXPIRED,
    Phase.CANCELLED: Reason.CANCELLED,
}


def next_step(batch: GatewayBatch) -> Step:
    """Return the next step of the batch."""
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
    """Return whether the batch is deleted or cancelled."""
    deleted = batch.metadata.deletion_timestamp is not None
    return deleted or batch.spec.desired_state == "Cancelled"


def is_running(batch: GatewayBatch) -> bool:
    """Return whether its lines are being run."""
    status = batch.status
    over = status.run_end is not None or status.phase in TERMINAL_PHASES
    return status.start_time is not None and not over


def find_deadline(batch: GatewayBatch) -> datetime:
    """Return the end of its window (`expires_at`), after which no line is run."""
    return parse_time(batch.metadata.creation_timestamp) + timedelta(seconds=WINDOW_SECONDS)


def charge_lines(batch: GatewayBatch, completed: int) -> int:
    """Micro-dollars for so many lines with a 2xx response: each an equal part of the hold."""
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
    """Return the status of a batch whose lines are valid and whose money is held."""
    text = f"{count_noun(total, 'request')} under way"
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
    """Return the terminal status of a batch whose input cannot be run; it costs nothing."""
    errors = render_problems(problems)
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
    """Return the status of a running batch; `waits` says why it makes no progress, if so."""
    total = batch.status.counts.total if batch.status.counts else 0
    reason, text = Reason.RUNNING, f"{total} requests are run"
    if waits is not None:
        reason, text = waits[0], describe_wait(batch, waits[1])
    if batch.status.cancelling_time is not None:
        reason, text = Reason.CANCELLING, "requests under way are brought to an end"
    counts = {"counts": _count(total, completed, failed)}
    return {**counts, **_conditions(batch, "Unknown", reason, text, now)}


def record_wait(batch: GatewayBatch, reason: Reason, text: str, now: datetime) -> dict[str, Any]:
    """Return the status of a batch that does not run yet; empty if it says so already."""
    message = describe_wait(batch, text)
    for condition in batch.status.conditions or ():
        is_same = (condition.reason, condition.message) == (reason, message)
        if condition.type == ConditionType.SUCCEEDED and is_same:
            return {}
    return _conditions(batch, "Unknown", reason, message, now)


def describe_wait(batch: GatewayBatch, text: str) -> str:
    """Return what the batch waits for, and until when; the end of a run has no deadline."""
    if batch.status.run_end is not None:
        return text.rstrip(".")[:1024]
    end = f"; the batch waits until {format_time(find_deadline(batch))}"
    return text.rstrip(".")[: 1024 - len(end)] + end


def record_cancelling(batch: GatewayBatch, now: datetime) -> dict[str, Any]:
    """Return the status of a batch whose cancellation has begun."""
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
    """Return the status after the last line, or after the stop of the run; results are final.

    `results` refers to the list of stored results that the Files are made from.
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
    """Return the terminal status of a batch that has run; a File without lines is not created.

    `sent` is the number of lines sent; `failed` includes lines that a stopped run never sent.
    """
    status = batch.status
    phase = status.run_end or Phase.CANCELLED
    if status.cancelling_time is not None:
        phase = Phase.CANCELLED
    text = f"{count_noun(completed, 'request')} completed, {failed} failed"
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
