"""Status of a callback's delivery after each step. Pure.

The schedule's state is in the task's status alone, written after each attempt: a killed process can
repeat an attempt, but neither skip one nor restart the schedule (contract §11.5).

    Pending ── attempt ──▶ Pending … ──▶ Delivered | Undelivered (and work: Settled)
       ▲                                        │
       └────────── spec.redeliveries raised ────┘
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway_core.api.conditions import ConditionType, Reason, change_conditions
from gateway_core.api.errors import Conflict
from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.task import (
    MOST_REDELIVERIES,
    MOST_TEXT,
    SETTLED,
    TERMINAL_PHASES,
    Callback,
    GatewayTask,
)
from gateway_core.api.times import format_precise_time, format_time, parse_time
from gateway_core.callbacks.schedule import State, Verdict, find_delay, judge
from gateway_core.tasks.lifecycle import open_callback

DELETED_GRACE = timedelta(seconds=30)
"""How long the object of a deleted task is kept for its callback."""
SECRET_PATIENCE = timedelta(hours=24)
"""How long a due attempt waits for its account's secret."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One attempt: when it ended, and the HTTP status of the response, if any.

    `answer` describes the result for people, without anything that the receiver wrote.
    `retry_after` is seconds.
    """

    time: datetime
    status: int | None
    answer: str
    retry_after: float | None = None


def callback_of(task: GatewayTask) -> Callback:
    """Return the recorded delivery, or its initial state."""
    if task.status.callback is not None:
        return task.status.callback
    ended = parse_time(task.status.completion_time)
    return Callback.model_validate({**open_callback(task, ended), "redeliveries": 0})


def due_time(task: GatewayTask) -> datetime:
    """When the next attempt is due."""
    callback = callback_of(task)
    return parse_time(callback.next_attempt_time or task.status.completion_time)


def given_up_time(task: GatewayTask) -> datetime | None:
    """When a deleted task's callback is given up, since its object must not stay for hours."""
    deleted = task.metadata.deletion_timestamp
    if deleted is None:
        return None
    return max(parse_time(deleted), parse_time(task.status.completion_time)) + DELETED_GRACE


def record_outcome(
    task: GatewayTask, outcome: Outcome, schedule: Sequence[float], jitter: float
) -> dict[str, Any]:
    """Return the status after an attempt: the time of the next one, or the end."""
    attempts = callback_of(task).attempts + 1
    change: dict[str, Any] = {
        "attempts": attempts,
        "lastAttemptTime": format_time(outcome.time),
        "lastStatus": outcome.status,
        "lastAnswer": outcome.answer,
    }
    text = f"attempt {attempts} of {len(schedule)}: {outcome.answer}"
    verdict = judge(outcome.status)
    if verdict is Verdict.DELIVERED:
        return _settle(task, State.DELIVERED, text, outcome.time, change)
    delay = None
    if verdict is Verdict.FAILED:
        retry_after = outcome.retry_after
        delay = find_delay(schedule, attempts, retry_after=retry_after, jitter=jitter)
    if delay is None:
        return _settle(task, State.UNDELIVERED, text, outcome.time, change)
    due = outcome.time + timedelta(seconds=delay)
    change["nextAttemptTime"] = format_precise_time(due)
    return _describe(task, State.PENDING, text, outcome.time, change)


def record_obstacle(task: GatewayTask, problem: str, now: datetime) -> dict[str, Any] | None:
    """Return the status of a due attempt that cannot be made; None if already recorded."""
    if callback_of(task).last_answer == _shorten(problem):
        return None
    return _describe(task, State.PENDING, problem, now, {"lastAnswer": problem})


def record_surrender(task: GatewayTask, problem: str, now: datetime) -> dict[str, Any]:
    """Return the status of a callback that is given up before the end of its schedule."""
    return _settle(task, State.UNDELIVERED, problem, now, {"lastAnswer": problem})


def record_new_series(task: GatewayTask, now: datetime) -> dict[str, Any]:
    """Return the status of a callback whose schedule an admin has restarted."""
    opened = open_callback(task, now)
    text = f"redelivery {task.spec.redeliveries} is due"
    return {"work": None, **_describe(task, State.PENDING, text, now, opened)}


def request_redelivery(obj: Object) -> dict[str, Any]:
    """Return the patch of an ended task that has its callback delivered once more. Conflict."""
    spec, phase = obj["spec"], (obj.get("status") or {}).get("phase")
    if not spec["request"].get("callbackUrl"):
        raise Conflict("The task has no callback.")
    if phase not in TERMINAL_PHASES:
        raise Conflict("The task has not ended, so its callback is still to come.")
    redeliveries = spec.get("redeliveries", 0)
    if redeliveries >= MOST_REDELIVERIES:
        raise Conflict(f"The callback was delivered anew {redeliveries} times, which is the most.")
    return {"spec": {"redeliveries": redeliveries + 1}}


def keep_finalizer(task: GatewayTask) -> list[str] | None:
    """Return the finalizers of a reopened task; None if they need no change."""
    if TASK_FINALIZER in task.metadata.finalizers:
        return None
    return sorted({*task.metadata.finalizers, TASK_FINALIZER})


def _settle(
    task: GatewayTask, state: str, text: str, now: datetime, change: dict[str, Any]
) -> dict[str, Any]:
    change = {**change, "nextAttemptTime": None}
    return {"work": SETTLED, **_describe(task, state, text, now, change)}


def _describe(
    task: GatewayTask, state: str, text: str, now: datetime, change: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole `status.callback` with `change`, and its condition."""
    before = callback_of(task).model_dump(by_alias=True, exclude_none=True)
    status, reason = {
        State.PENDING: ("Unknown", Reason.DELIVERY_PENDING),
        State.DELIVERED: ("True", Reason.DELIVERED),
        State.UNDELIVERED: ("False", Reason.UNDELIVERED),
    }[state]
    changes = [(ConditionType.CALLBACK_DELIVERED, status, reason, text)]
    callback = {**before, **change, "state": state}
    if callback.get("lastAnswer") is not None:
        # every text passes here: a write that the schema refuses would be retried for ever
        callback["lastAnswer"] = _shorten(callback["lastAnswer"])
    return {
        "observedGeneration": task.metadata.generation,
        "callback": callback,
        "conditions": change_conditions(task, changes, now),
    }


def _shorten(text: str) -> str:
    """Return the text, cut to the length that the schema allows."""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"
