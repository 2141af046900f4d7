"""Conditions as the Kubernetes API conventions want them."""

import re

import pytest

from gateway_core.api.conditions import ConditionType, Reason, update_conditions

EARLY, LATE = "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"
SUCCEEDED, READY = ConditionType.SUCCEEDED, ConditionType.READY


def begin() -> list[dict[str, object]]:
    change = (SUCCEEDED, "Unknown", Reason.SUBMITTING, "being submitted")
    return update_conditions([], [change], generation=1, now=EARLY)


def test_new_condition_is_whole() -> None:
    assert begin() == [
        {
            "type": "Succeeded",
            "status": "Unknown",
            "observedGeneration": 1,
            "lastTransitionTime": EARLY,
            "reason": "Submitting",
            "message": "being submitted",
        }
    ]


def test_transition_time_stays_with_the_status() -> None:
    change = (SUCCEEDED, "Unknown", Reason.RUNNING, "running")
    [condition] = update_conditions(begin(), [change], generation=2, now=LATE)
    assert condition["lastTransitionTime"] == EARLY
    assert condition["reason"] == "Running"
    assert condition["message"] == "running"
    assert condition["observedGeneration"] == 2


def test_transition_time_moves_with_the_status() -> None:
    change = (SUCCEEDED, "True", Reason.COMPLETED, "done")
    [condition] = update_conditions(begin(), [change], generation=1, now=LATE)
    assert condition["lastTransitionTime"] == LATE


def test_update_keeps_conditions_of_other_types() -> None:
    other = {**begin()[0], "type": "SomebodyElses"}
    change = (SUCCEEDED, "True", Reason.COMPLETED, "done")
    updated = update_conditions([other, *begin()], [change], generation=1, now=LATE)
    assert updated[0] == other
    assert [condition["type"] for condition in updated] == ["SomebodyElses", "Succeeded"]


def test_update_does_not_change_its_arguments() -> None:
    current = begin()
    update_conditions(current, [(SUCCEEDED, "True", Reason.COMPLETED, "x")], generation=1, now=LATE)
    assert current == begin()


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.GENERATION_FAILED, "generation_failed"),
        (Reason.CANCELLED, "cancelled"),
        (Reason.DEADLINE_EXCEEDED, "deadline_exceeded"),
        (Reason.SUBMISSION_UNKNOWN, "submission_unknown"),
        (Reason.JOB_LOST, "job_lost"),
        (Reason.PROVIDER_UNAVAILABLE, "provider_unavailable"),
    ],
)
def test_reason_has_its_wire_code(reason: Reason, code: str) -> None:
    assert reason.code == code


def test_reasons_have_the_shape_kubernetes_wants() -> None:
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z]{0,62}", reason.value)
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", reason.code)
    for kind in ConditionType:
        assert re.fullmatch(r"[A-Z][A-Za-z]*", kind.value)
