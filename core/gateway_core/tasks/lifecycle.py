"""State machine of a task: the next step, and the status that each step records.

Pure and level-triggered: the next step follows from the object alone, so that reconciliation can
resume after a kill at any point. A terminal phase is final (I3). A task without a phase is Pending;
the phase is written once there is something to say about it.

    Pending ── ADOPT ──▶ Submitting ── SUBMIT ──▶ Running ── POLL ──▶ Completed | Failed
                                                        ── DELIVER ──▶ Settled ── CLOSE
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from gateway_core.api.conditions import ConditionType, Reason, change_conditions
from gateway_core.api.ids import CHARGED, FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.money import to_decimal_text
from gateway_core.api.task import SETTLED, TERMINAL_PHASES, GatewayTask
from gateway_core.api.times import format_precise_time, format_time, parse_time
from gateway_core.callbacks.schedule import State
from gateway_core.callbacks.signing import make_message_id

OPEN_SELECTOR = f"status.work!={SETTLED}"
"""Field selector of tasks with work left; it also matches an absent status."""


MAX_MESSAGE = 1024
"""Characters of a condition's message."""


class Phase:
    """Values of `status.phase`."""

    PENDING = "Pending"
    SUBMITTING = "Submitting"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"


class Step(Enum):
    """Next step of a task."""

    UNMARK = "unmark"  # it has the label of aggregated tasks but has not ended: remove the label
    ADOPT = "take in"  # validate it, hold its money, record the intent to submit
    SUBMIT = "submit"  # start the job, or find out whether it was started
    POLL = "poll"  # query the job
    STOP = "stop"  # an admin cancels it: stop the job, then fail
    EXPIRE = "expire"  # its deadline has passed: fail
    DELIVER = "deliver"  # it has ended: send its callback
    REOPEN = "reopen"  # an admin wants its settled callback sent again
    CLOSE = "close"  # it has ended: settle, aggregate its charge, archive, remove the finalizer
    NOTHING = "nothing"


def next_step(task: GatewayTask, now: datetime) -> Step:
    """Return the next step of `task` at `now` (aware)."""
    status = task.status
    if is_terminal(task):
        return _next_step_at_end(task)
    if FOLDED_LABEL in task.metadata.labels:
        return Step.UNMARK  # the label would hide its charge from aggregation
    if task.metadata.deletion_timestamp or task.spec.desired_state == "Cancelled":
        return Step.STOP
    if now >= deadline(task):
        return Step.EXPIRE
    if is_pending(task) or status.upstream is None:
        return Step.ADOPT
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
    """Return whether an admin has requested a redelivery that has not begun."""
    done = task.status.callback.redeliveries if task.status.callback else 0
    return task.spec.redeliveries > done


def is_pending(task: GatewayTask) -> bool:
    """Return whether no intent to submit the task is recorded."""
    return task.status.phase in (None, Phase.PENDING)


def is_terminal(task: GatewayTask) -> bool:
    """Return whether the task has ended."""
    return task.status.phase in TERMINAL_PHASES


def is_closed(task: GatewayTask) -> bool:
    """Return whether an ended task is archived and aggregated, without a finalizer.

    If the finalizer was removed by hand, the task is not closed before its charge is aggregated.
    """
    meta = task.metadata
    is_labelled = meta.labels.get(FOLDED_LABEL, CHARGED) != CHARGED
    return is_labelled and TASK_FINALIZER not in meta.finalizers


def deadline(task: GatewayTask) -> datetime:
    """When an unfinished task fails with a timeout."""
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
    """Return the status before a call that may start a job; also written before each retry."""
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
    """Return the status change after an intent that certainly started no job."""
    return {"upstream": None}


def record_job(task: GatewayTask, job_id: str, now: datetime) -> dict[str, Any]:
    """Return the status once the provider has returned the job's id."""
    provider = task.status.upstream.provider_name if task.status.upstream else "the provider"
    message = f"{provider} runs the job"
    submitted = (ConditionType.SUBMITTED, "True", Reason.RUNNING, f"{provider} took the job")
    return {
        **_head(task, Phase.RUNNING, "Unknown", Reason.RUNNING, message, now, submitted),
        "upstream": {"jobId": job_id},
    }


def record_wait(
    task: GatewayTask, reason: Reason, text: str, now: datetime, until: datetime | None = None
) -> dict[str, Any]:
    """Return the status of a task that waits for what `text` names, at most until its deadline.

    Empty if the status says so already. `until` as for `describe_wait`.
    """
    message = describe_wait(task, text, until)
    if (reason, message) == read_progress(task):
        return {}
    job = task.status.upstream
    submitted = (ConditionType.SUBMITTED, "False", reason, message)
    others = () if job is not None and job.job_id is not None else (submitted,)
    return _head(task, task.status.phase or Phase.PENDING, "Unknown", reason, message, now, *others)


def describe_wait(task: GatewayTask, text: str, until: datetime | None = None) -> str:
    """Return the text of a wait and its end: the deadline, or `until` if that is earlier."""
    last = deadline(task)
    end = f"; the task waits until {format_time(last if until is None else min(last, until))}"
    return text.rstrip(".")[: MAX_MESSAGE - len(end)] + end


def record_resumption(task: GatewayTask, now: datetime) -> dict[str, Any]:
    """Return the status of a task whose job runs, after a wait."""
    provider = task.status.upstream.provider_name if task.status.upstream else "the provider"
    message = f"{provider} runs the job"
    return _head(task, Phase.RUNNING, "Unknown", Reason.RUNNING, message, now)


def read_progress(task: GatewayTask) -> tuple[str, str]:
    """Reason and message of `Succeeded`, which tell what the task does or waits for."""
    for condition in task.status.conditions or ():
        if condition.type == ConditionType.SUCCEEDED:
            return condition.reason, condition.message or ""
    return "", ""


def record_completion(
    task: GatewayTask, videos: Sequence[Mapping[str, Any]], charged: int, now: datetime
) -> dict[str, Any]:
    """Return the terminal status of a task with stored outputs."""
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
    """Return the terminal status of a failed task, which costs nothing.

    `message` is the client's (contract §2.3): a sentence, cut to 1024 characters. `limit` is the
    exceeded credit limit as in `status.failure.limit` (§11.1).
    """
    message = message[:MAX_MESSAGE]
    failure = {"code": reason.code, "message": message}
    return {
        **_head(task, Phase.FAILED, "False", reason, message, now),
        **_ending(task, 0, now),
        "failure": failure if limit is None else {**failure, "limit": dict(limit)},
    }


def refuse_restored(task: GatewayTask, message: str, now: datetime) -> dict[str, Any]:
    """Return the terminal status of a restored task that is not run again, nor called back."""
    failure = record_failure(task, Reason.SUBMISSION_UNKNOWN, message, now)
    if task.spec.request.callback_url is None:
        return failure
    given_up = {"state": State.UNDELIVERED, "nextAttemptTime": None, "lastAnswer": message}
    changes = [
        (ConditionType.SUCCEEDED, "False", Reason.SUBMISSION_UNKNOWN, message),
        (ConditionType.FINISHED, "True", Reason.SUBMISSION_UNKNOWN, message),
        (ConditionType.CALLBACK_DELIVERED, "False", Reason.UNDELIVERED, message),
    ]
    return {
        **failure,
        "work": SETTLED,
        "callback": {**failure["callback"], **given_up},
        "conditions": change_conditions(task, changes, now),
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
    # the first status introduces the condition; later ones keep it
    elif not task.status.conditions:
        changes.append((ConditionType.FINISHED, "False", reason, message))
    return {
        "phase": phase,
        "observedGeneration": task.metadata.generation,
        "conditions": change_conditions(task, changes, now),
    }


def _ending(task: GatewayTask, charged: int, now: datetime) -> dict[str, Any]:
    """Return fields of both ends.

    A task with a callback stays open until that is settled (§11.5).
    """
    callback = task.spec.request.callback_url is not None
    after = {"callback": open_callback(task, now)} if callback else {"work": SETTLED}
    return {
        **after,
        "chargedMicros": charged,
        "cost": to_decimal_text(charged),
        "completionTime": format_time(now),
    }
