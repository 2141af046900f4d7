"""The delivery's records as a state machine: crashes, late writes and admins at every place."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import TASK_FINALIZER
from gateway_core.api.task import MOST_TEXT, Callback, GatewayTask
from gateway_core.api.times import format_time, parse_time
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.tasks.delivery import (
    Outcome,
    due_time,
    given_up_time,
    record_new_series,
    record_obstacle,
    record_outcome,
    record_surrender,
)
from gateway_core.tasks.lifecycle import Step, next_step, record_failure, wants_redelivery
from tests.fakes.kubernetes import merge_patch

LONGEST = "x" * 600
BEGIN = datetime(2026, 11, 21, 10, tzinfo=UTC)
STATUSES = st.sampled_from([None, 200, 204, 301, 404, 410, 429, 500, 503])


@pytest.mark.parametrize("length", [MOST_TEXT - 1, MOST_TEXT, MOST_TEXT + 1])
def test_last_answer_is_cut_to_the_bound_of_the_record(length: int) -> None:
    deliveries = Deliveries()
    change = record_obstacle(deliveries.task, "x" * length, BEGIN)
    assert change is not None
    kept = "x" * length if length <= MOST_TEXT else "x" * (MOST_TEXT - 1) + "…"
    assert change["callback"]["lastAnswer"] == kept


class Deliveries(RuleBasedStateMachine):
    """A task that has ended, in the words of its JSON alone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        obj = {
            "metadata": {
                "name": "task-a",
                "uid": "uid-1",
                "creationTimestamp": format_time(BEGIN),
                "finalizers": [TASK_FINALIZER],
                "generation": 1,
            },
            "spec": {
                "request": {
                    "accountName": "demo",
                    "service": "sim",
                    "action": "reference_to_video",
                    "modelId": "m",
                    "callbackUrl": "https://example.com/",
                }
            },
        }
        task = GatewayTask.model_validate(obj)
        obj["status"] = record_failure(task, Reason.CANCELLED, "Gone.", BEGIN)
        self.text = json.dumps(obj)
        self.id = obj["status"]["callback"]["id"]
        self.series = 0
        self.last: int | None = None

    @property
    def task(self) -> GatewayTask:
        """What any process reads anew: nothing else is carried from step to step."""
        return GatewayTask.model_validate(json.loads(self.text))

    @property
    def step(self) -> Step:
        return next_step(self.task, self.now)

    def write(self, change: dict) -> None:
        self.text = json.dumps(merge_patch(json.loads(self.text), {"status": change}))

    @precondition(lambda self: self.step is Step.DELIVER and not wants_redelivery(self.task))
    @rule(status=STATUSES, retry=st.none() | st.floats(0, 9999), jitter=st.floats(-1, 1))
    def attempt(self, status, retry, jitter) -> None:
        task, before = self.task, self.task.status.callback
        due = due_time(task)
        self.now = max(self.now, due) + timedelta(seconds=1)
        outcome = Outcome(self.now, status, f"answered {status}", retry)
        self.write(record_outcome(task, outcome, SCHEDULE, jitter))
        after = self.task.status.callback
        self.series += 1
        self.last = status
        assert after.attempts == before.attempts + 1 == self.series
        if after.next_attempt_time is not None:
            delay = (parse_time(after.next_attempt_time) - self.now).total_seconds()
            assert delay >= 0.9 * SCHEDULE[self.series] - 1e-3
            assert delay >= min(retry or 0, 3600) - 1e-3
            assert delay <= max(1.1 * SCHEDULE[self.series], 3600)

    @precondition(lambda self: self.step is Step.DELIVER)
    @rule()
    def wait_for_a_key(self) -> None:
        due = due_time(self.task)
        change = record_obstacle(self.task, "no key", self.now)
        if change is not None:
            self.write(change)
            assert record_obstacle(self.task, "no key", self.now) is None
        assert due_time(self.task) == due

    @rule()
    def admin_wants_more(self) -> None:
        obj = json.loads(self.text)
        obj["spec"]["redeliveries"] = obj["spec"].get("redeliveries", 0) + 1
        self.text = json.dumps(obj)

    @precondition(lambda self: self.step is Step.REOPEN or wants_redelivery(self.task))
    @rule()
    def begin_anew(self) -> None:
        self.write(record_new_series(self.task, self.now))
        self.series = 0
        self.last = None
        assert self.step is Step.DELIVER
        assert due_time(self.task) <= self.now

    @precondition(lambda self: self.step is Step.DELIVER)
    @rule()
    def is_deleted(self) -> None:
        obj = json.loads(self.text)
        obj["metadata"].setdefault("deletionTimestamp", format_time(self.now))
        self.text = json.dumps(obj)
        end = given_up_time(self.task)
        assert end is not None
        assert end - max(self.now, BEGIN) <= timedelta(seconds=30)
        self.now = end
        self.write(record_surrender(self.task, "deleted", self.now))
        assert self.step is Step.CLOSE
        del obj["metadata"]["deletionTimestamp"]
        obj["status"] = json.loads(self.text)["status"]
        self.text = json.dumps(obj)
        self.series, self.last = len(SCHEDULE), None

    @invariant()
    def it_is_settled_exactly_when_it_has_an_outcome(self) -> None:
        status = self.task.status
        open_ = status.work is None
        assert open_ == (status.callback.state == "Pending")
        assert open_ == (status.callback.next_attempt_time is not None)
        condition = next(c for c in status.conditions if c.type == "CallbackDelivered")
        expected = {"Pending": "Unknown", "Delivered": "True", "Undelivered": "False"}
        assert condition.status == expected[status.callback.state]

    @invariant()
    def no_attempt_is_skipped_and_none_is_too_many(self) -> None:
        callback = self.task.status.callback
        assert self.series <= len(SCHEDULE)
        if callback.state == "Undelivered":
            assert self.series == len(SCHEDULE) or self.last == 410
        if callback.state == "Delivered":
            assert self.last in (200, 204)

    @invariant()
    def the_event_stays_the_same(self) -> None:
        status = self.task.status
        assert status.callback.id == self.id
        assert (status.phase, status.failure.message) == ("Failed", "Gone.")


def test_texts_of_every_record_are_bounded() -> None:
    machine = Deliveries()
    task = machine.task
    for change in (
        record_outcome(task, Outcome(BEGIN, None, LONGEST), SCHEDULE, 0),
        record_outcome(task, Outcome(BEGIN, 410, LONGEST), SCHEDULE, 0),
        record_obstacle(task, LONGEST, BEGIN),
        record_surrender(task, LONGEST, BEGIN),
    ):
        assert change is not None
        Callback.model_validate(change["callback"])
    waiting = record_obstacle(task, LONGEST, BEGIN)
    assert waiting is not None
    machine.write(waiting)
    assert record_obstacle(machine.task, LONGEST, BEGIN) is None, "waiting writes nothing"


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=40, stateful_step_count=30)
