"""A task's life: steps follow from the object alone, and an end has no way out (I3)."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway_core.api.conditions import ConditionType, Reason
from gateway_core.api.ids import FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.api.times import (
    format_label_time,
    format_precise_time,
    format_time,
    parse_label_time,
    parse_time,
)
from gateway_core.tasks.lifecycle import (
    Phase,
    Step,
    deadline,
    is_terminal,
    next_step,
    record_completion,
    record_failure,
    record_intent,
    record_job,
    reserved_micros,
)
from tests.fakes.kubernetes import merge_patch

CREATED = datetime(2026, 11, 21, 10, tzinfo=UTC)
VIDEO = {
    "url": "https://media.example.com/x",
    "key": "media/task-a/0",
    "bytes": 1,
    "sha256": "0" * 64,
    "contentType": "video/mp4",
}
FOLDED = {FOLDED_LABEL: "20261121T100000Z"}
FAILURES = [
    Reason.GENERATION_FAILED,
    Reason.CANCELLED,
    Reason.DEADLINE_EXCEEDED,
    Reason.SUBMISSION_UNKNOWN,
    Reason.JOB_LOST,
    Reason.OUTPUT_UNAVAILABLE,
    Reason.PROVIDER_UNAVAILABLE,
    Reason.INVALID_REQUEST,
    Reason.INSUFFICIENT_BALANCE,
]
RANK = {None: 0, Phase.SUBMITTING: 1, Phase.RUNNING: 2, Phase.COMPLETED: 3, Phase.FAILED: 3}


def make(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "task-a",
            "uid": "u",
            "generation": 1,
            "creationTimestamp": format_time(CREATED),
            "finalizers": [TASK_FINALIZER],
            **metadata,
        },
        "spec": {
            "desiredState": "Completed",
            "deadlineSeconds": 60,
            "request": {
                "accountName": "demo",
                "service": "sim",
                "action": "reference_to_video",
                "modelId": "sim-q4",
                "input": "{}",
                "reservedMicros": 500,
            },
        },
        **({"status": status} if status is not None else {}),
    }


def parse(obj: dict[str, Any]) -> GatewayTask:
    return GatewayTask.model_validate(obj)


def merge(obj: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    """The object after a merge patch of its status, as the API server makes it."""
    return merge_patch(obj, {"status": status})


def intent(obj: dict[str, Any], now: datetime, reserved: int = 500) -> dict[str, Any]:
    status = record_intent(
        parse(obj), provider="simulated", upstream_model="q4", reserved=reserved, now=now
    )
    return merge(obj, status)


class TaskLife(RuleBasedStateMachine):
    """A controller that does what `next_step` says, an admin, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.obj = make()
        self.now = CREATED
        self.ended_as: dict[str, Any] | None = None
        self.written = False

    @property
    def step(self) -> Step:
        return next_step(parse(self.obj), self.now)

    def write(self, status: dict[str, Any]) -> None:
        before = RANK[self.obj.get("status", {}).get("phase")]
        self.obj = merge(self.obj, status)
        self.written = True
        assert RANK[self.obj["status"]["phase"]] >= before, "a phase never goes back"
        if is_terminal(parse(self.obj)):
            self.ended_as = copy.deepcopy(self.obj["status"])

    @rule(seconds=st.integers(min_value=0, max_value=40))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: self.obj["spec"]["desiredState"] == "Completed")
    @rule()
    def admin_cancels(self) -> None:
        self.obj["spec"]["desiredState"] = "Cancelled"
        self.obj["metadata"]["generation"] += 1

    @rule()
    def admin_deletes(self) -> None:
        self.obj["metadata"].setdefault("deletionTimestamp", format_time(self.now))

    @precondition(lambda self: self.step is Step.ADOPT)
    @rule(reserved=st.integers(min_value=0, max_value=10**6))
    def intent_is_recorded(self, reserved: int) -> None:
        self.obj = intent(self.obj, self.now, reserved)
        self.written = True

    @precondition(lambda self: self.step is Step.SUBMIT)
    @rule()
    def intent_is_recorded_again(self) -> None:
        before = reserved_micros(parse(self.obj))
        self.obj = intent(self.obj, self.now, before)

    @precondition(lambda self: self.step is Step.SUBMIT)
    @rule()
    def job_is_recorded(self) -> None:
        self.write(record_job(parse(self.obj), "job_1", self.now))

    @precondition(lambda self: self.step is Step.POLL)
    @rule(charged=st.integers(min_value=0, max_value=10**6))
    def job_succeeds(self, charged: int) -> None:
        self.write(record_completion(parse(self.obj), [VIDEO], charged, self.now))

    @precondition(lambda self: self.step not in (Step.CLOSE, Step.NOTHING))
    @rule(reason=st.sampled_from(FAILURES), message=st.text(min_size=1, max_size=2000))
    def it_fails(self, reason: Reason, message: str) -> None:
        self.write(record_failure(parse(self.obj), reason, message, self.now))

    @precondition(lambda self: self.step is Step.CLOSE)
    @rule()
    def it_is_closed(self) -> None:
        self.obj["metadata"]["finalizers"] = []
        self.obj["metadata"]["labels"] = {FOLDED_LABEL: format_label_time(self.now)}

    @invariant()
    def the_next_step_is_always_known(self) -> None:
        task = parse(self.obj)
        step = next_step(task, self.now)
        if task.status.phase in TERMINAL_PHASES:
            assert step in (Step.CLOSE, Step.NOTHING)
            assert (step is Step.CLOSE) is bool(self.obj["metadata"]["finalizers"])
        elif self.obj["metadata"].get("deletionTimestamp"):
            assert step is Step.STOP
        elif step is Step.EXPIRE:
            assert self.now >= deadline(task)
        else:
            assert step is not Step.NOTHING

    @invariant()
    def an_end_stays_as_it_is(self) -> None:
        if self.ended_as is not None:
            assert self.obj["status"] == self.ended_as

    @invariant()
    def the_status_is_consistent(self) -> None:
        if not self.written:
            return
        status = self.obj["status"]
        conditions = {c["type"]: c for c in status["conditions"]}
        assert len(conditions) == len(status["conditions"])
        succeeded = conditions[ConditionType.SUCCEEDED]
        phase = status["phase"]
        expected = {Phase.COMPLETED: "True", Phase.FAILED: "False"}.get(phase, "Unknown")
        assert succeeded["status"] == expected
        ended = phase in TERMINAL_PHASES
        assert conditions[ConditionType.FINISHED]["status"] == str(ended)
        assert ("result" in status) is (phase == Phase.COMPLETED)
        assert ("failure" in status) is (phase == Phase.FAILED)
        assert (status.get("work") == "Settled") is ended
        assert ("completionTime" in status) is ended
        assert ("chargedMicros" in status) is ended
        if phase == Phase.FAILED:
            assert status["chargedMicros"] == 0
            assert status["failure"]["code"] == Reason(succeeded["reason"]).code
            assert 1 <= len(status["failure"]["message"]) <= 1024
        if phase == Phase.RUNNING:
            assert status["upstream"]["jobId"]
            assert conditions[ConditionType.SUBMITTED]["status"] == "True"
        for condition in conditions.values():
            assert condition["reason"]
            assert condition["observedGeneration"] <= self.obj["metadata"]["generation"]
            assert parse_time(condition["lastTransitionTime"]) <= self.now
        assert status["observedGeneration"] <= self.obj["metadata"]["generation"]
        parse(self.obj)


TestTaskLife = TaskLife.TestCase
TestTaskLife.settings = settings(max_examples=40, stateful_step_count=30)


@pytest.mark.parametrize(
    ("obj", "step"),
    [
        (make(), Step.ADOPT),
        (make(finalizers=[]), Step.ADOPT),
        (make({"phase": "Submitting"}), Step.ADOPT),
        (make({"phase": "Submitting", "upstream": {"providerName": "p"}}), Step.SUBMIT),
        (make({"phase": "Running", "upstream": {"providerName": "p", "jobId": "j"}}), Step.POLL),
        (make({"phase": "FromTheFuture", "upstream": {"providerName": "p"}}), Step.SUBMIT),
        (make({"phase": "Completed"}), Step.CLOSE),
        (make({"phase": "Failed"}), Step.CLOSE),
        (make({"phase": "Completed"}, labels=FOLDED), Step.CLOSE),
        (make({"phase": "Completed"}, finalizers=[]), Step.CLOSE),
        (make({"phase": "Completed"}, labels=FOLDED, finalizers=[]), Step.NOTHING),
        (make({"phase": "Completed"}, labels=FOLDED, finalizers=["a/b"]), Step.NOTHING),
        (make({"phase": "Completed"}, deletionTimestamp="2026-11-21T10:00:00Z"), Step.CLOSE),
        (make(deletionTimestamp="2026-11-21T10:00:00Z"), Step.STOP),
        (make(labels=FOLDED, finalizers=[]), Step.UNMARK),
        (make({"phase": "Running"}, labels=FOLDED), Step.UNMARK),
    ],
)
def test_next_step_follows_from_the_object(obj: dict[str, Any], step: Step) -> None:
    assert next_step(parse(obj), CREATED) is step


@pytest.mark.parametrize("status", [None, {"phase": "Running", "upstream": {"providerName": "p"}}])
def test_task_expires_at_its_deadline(status: dict[str, Any] | None) -> None:
    obj = make(status)
    assert next_step(parse(obj), CREATED + timedelta(seconds=59.9)) is not Step.EXPIRE
    assert next_step(parse(obj), CREATED + timedelta(seconds=60)) is Step.EXPIRE
    obj["spec"]["desiredState"] = "Cancelled"
    assert next_step(parse(obj), CREATED + timedelta(days=1)) is Step.STOP
    ended = parse(make({"phase": "Completed"}))
    assert next_step(ended, CREATED + timedelta(days=9)) is Step.CLOSE


def test_reservation_of_the_operator_replaces_that_of_admission() -> None:
    assert reserved_micros(parse(make())) == 500
    assert reserved_micros(parse(make({"reservedMicros": 300}))) == 300
    assert reserved_micros(parse(make({"reservedMicros": 0}))) == 0


def test_repeated_intent_keeps_the_start_time() -> None:
    first = intent(make(), CREATED + timedelta(seconds=1))
    second = intent(first, CREATED + timedelta(seconds=9))
    assert second["status"]["startTime"] == first["status"]["startTime"]
    assert second["status"]["upstream"]["intentTime"] > first["status"]["upstream"]["intentTime"]


def test_completed_task_has_its_cost() -> None:
    running = merge(
        intent(make(), CREATED), record_job(parse(intent(make(), CREATED)), "j", CREATED)
    )
    status = record_completion(parse(running), [VIDEO], 125_000, CREATED)
    assert status["chargedMicros"] == 125_000
    assert status["cost"] == "0.125"


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2999, 1, 1)))
def test_times_are_parsed_as_they_were_formatted(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)
    assert parse_time(format_precise_time(aware)) == aware
    assert parse_time(format_time(aware)) == aware.replace(microsecond=0)


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2999, 1, 1)))
def test_label_time_is_alphanumeric_and_exact(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC, microsecond=0)
    text = format_label_time(aware)
    assert parse_label_time(text) == aware
    assert text.isalnum()


def test_text_without_a_time_is_none_in_a_label_and_the_epoch_elsewhere() -> None:
    for text in ("", "yes", "20261121", "20261121T101530"):
        assert parse_label_time(text) is None
    assert parse_time(None) == parse_time("") == datetime(1970, 1, 1, tzinfo=UTC)
