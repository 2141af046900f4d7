"""A task's life: which step comes next, and the status each step records.

Pure and level-triggered: the next step follows from the object as it is, so that a process that
was killed anywhere goes on from the record. A terminal phase has no way out (I3).

    (none) ── TAKE_IN ──▶ Submitting ── SUBMIT ──▶ Running ── POLL ──▶ Completed | Failed
                                                        ── DELIVER ──▶ Settled ── CLOSE
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from gateway_core.api.conditions import ConditionType, Reason, change_conditions
from gateway_core.api.ids import FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.money import to_decimal_text
from gateway_core.api.task import SETTLED, TERMINAL_PHASES, GatewayTask
from gateway_core.api.times import format_precise_time, format_time, parse_time
from gateway_core.callbacks.schedule import State
from gateway_core.callbacks.signing import make_message_id

OPEN_SELECTOR = f"status.work!={SETTLED}"
"""Field selector of tasks with work left; it matches an absent status too."""


class Phase:
    """Values of `status.phase`."""

    SUBMITTING = "Submitting"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Step(Enum):
    """What is to be done with a task next."""

    UNMARK = "unmark"  # it has not ended and says that it is folded: take that label away
    TAKE_IN = "take in"  # check it, hold its money, record the intent to submit
    SUBMIT = "submit"  # start the job, or find out whether it was started
    POLL = "poll"  # ask after the job
    STOP = "stop"  # an admin wants it ended: stop the job, then fail
    EXPIRE = "expire"  # its deadline is over: fail
    DELIVER = "deliver"  # it has ended, and its callback is to be sent
    REOPEN = "reopen"  # its callback is settled, and an admin wants it sent once more
    CLOSE = "close"  # it has ended: archive, settle, fold its charge, let go of the object
    NOTHING = "nothing"


def next_step(task: GatewayTask, now: datetime) -> Step:
    """The step that `task` is due for at `now` (aware)."""
    status = task.status
    if is_terminal(task):
        return _next_step_at_end(task)
    if FOLDED_LABEL in task.metadata.labels:
        return Step.UNMARK  # whatever it ends by, its charge has still to be folded
    if task.metadata.deletion_timestamp or task.spec.desired_state == "Cancelled":
        return Step.STOP
    if now >= deadline(task):
        return Step.EXPIRE
    if status.phase is None or status.upstream is None:
        return Step.TAKE_IN
    if status.upstream.job_id is None:
        return Step.SUBMIT
    return Step.POLL


def _next_step_at_end(task: GatewayTask) -> Step:
    if task.spec.request.callback_url is not None:
        if task.status.work != SETTLED:
            return Step.DELIVER
        if wants_redelivery(task) and not task.metadata.deletion_timestamp:
            return Step.REOPEN
    return Step.NOTHING if is_closed(task) else Step.CLOSE


def wants_redelivery(task: GatewayTask) -> bool:
    """Whether an admin has asked for a delivery that has not been begun."""
    done = task.status.callback.redeliveries if task.status.callback else 0
    return task.spec.redeliveries > done


def is_terminal(task: GatewayTask) -> bool:
    """Whether the task has ended."""
    return task.status.phase in TERMINAL_PHASES


def is_closed(task: GatewayTask) -> bool:
    """Whether a task that has ended is archived and folded, and nothing holds its object.

    One whose finalizer somebody took away by hand is not closed before its charge is folded.
    """
    meta = task.metadata
    return FOLDED_LABEL in meta.labels and TASK_FINALIZER not in meta.finalizers


def deadline(task: GatewayTask) -> datetime:
    """When an unfinished task fails."""
    created = parse_time(task.metadata.creation_timestamp)
    return created + timedelta(seconds=task.spec.deadline_seconds)


def reserved_micros(task: GatewayTask) -> int:
    """Micro-dollars held for the task: quoted by the operator, else at admission."""
    if task.status.reserved_micros is not None:
        return task.status.reserved_micros
    return task.spec.request.reserved_micros or 0


def record_intent(
    task: GatewayTask, *, provider: str, upstream_model: str, reserved: int, now: datetime
) -> dict[str, Any]:
    """The status before a call that may start a job; written again before one is repeated."""
    message = f"the job is being submitted to {provider}"
    submitted = (ConditionType.SUBMITTED, "False", Reason.SUBMITTING, message)
    return {
        **_head(task, Phase.SUBMITTING, "Unknown", Reason.SUBMITTING, message, now, submitted),
        "startTime": task.status.start_time or format_time(now),
        "reservedMicros": reserved,
        "upstream": {
            "providerName": provider,
            "upstreamModel": upstream_model,
            "intentTime": format_precise_time(now),
        },
    }


def withdraw_intent() -> dict[str, Any]:
    """The change of a status whose intent has certainly made no job: as if it were just created."""
    return {"upstream": None}


def record_job(task: GatewayTask, job_id: str, now: datetime) -> dict[str, Any]:
    """The status once the provider has named the job."""
    provider = task.status.upstream.provider_name if task.status.upstream else "the provider"
    message = f"{provider} runs the job"
    submitted = (ConditionType.SUBMITTED, "True", Reason.RUNNING, f"{provider} took the job")
    return {
        **_head(task, Phase.RUNNING, "Unknown", Reason.RUNNING, message, now, submitted),
        "upstream": {"jobId": job_id},
    }


def record_completion(
    task: GatewayTask, videos: Sequence[Mapping[str, Any]], charged: int, now: datetime
) -> dict[str, Any]:
    """The terminal status of a task whose outputs are stored."""
    message = "the outputs are stored"
    return {
        **_head(task, Phase.COMPLETED, "True", Reason.COMPLETED, message, now),
        **_ending(task, charged, now),
        "result": {"videos": [dict(video) for video in videos]},
    }


def record_failure(
    task: GatewayTask,
    reason: Reason,
    message: str,
    now: datetime,
    *,
    limit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The terminal status of a task that failed; its hold is released, so it costs nothing.

    `message` is what the client reads (contract §2.3): a sentence, at most 1024 characters. `limit`
    is the credit limit that it failed by, as `status.failure.limit` has it (§11.1).
    """
    message = message[:1024]
    failure = {"code": reason.code, "message": message}
    return {
        **_head(task, Phase.FAILED, "False", reason, message, now),
        **_ending(task, 0, now),
        "failure": failure if limit is None else {**failure, "limit": dict(limit)},
    }


def open_callback(task: GatewayTask, now: datetime) -> dict[str, Any]:
    """`status.callback` before the first attempt, which is due at once (§11.4)."""
    return {
        "id": make_message_id(task.metadata.uid),
        "state": State.PENDING,
        "attempts": 0,
        "nextAttemptTime": format_precise_time(now),
        "redeliveries": task.spec.redeliveries,
    }


def _head(
    task: GatewayTask,
    phase: str,
    succeeded: str,
    reason: Reason,
    message: str,
    now: datetime,
    *others: tuple[ConditionType, str, Reason, str],
) -> dict[str, Any]:
    changes = [*others, (ConditionType.SUCCEEDED, succeeded, reason, message)]
    if phase in TERMINAL_PHASES:
        changes.append((ConditionType.FINISHED, "True", reason, message))
        if task.spec.request.callback_url is not None:
            due = (ConditionType.CALLBACK_DELIVERED, "Unknown", Reason.DELIVERY_PENDING, "is due")
            changes.append(due)
    elif not task.status.conditions:
        changes.append((ConditionType.FINISHED, "False", reason, message))
    return {
        "phase": phase,
        "observedGeneration": task.metadata.generation,
        "conditions": change_conditions(task, changes, now),
    }


def _ending(task: GatewayTask, charged: int, now: datetime) -> dict[str, Any]:
    """What both ends have. A task with a callback stays open until that is settled (§11.5)."""
    callback = task.spec.request.callback_url is not None
    after = {"callback": open_callback(task, now)} if callback else {"work": SETTLED}
    return {
        **after,
        "chargedMicros": charged,
        "cost": to_decimal_text(charged),
        "completionTime": format_time(now),
    }
