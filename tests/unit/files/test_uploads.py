"""Requests that an Upload accepts in each state, and its responses."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway_core.files.uploads import (
    Step,
    UploadConflict,
    count_room,
    is_overdue,
    judge_cancellation,
    judge_completion,
    judge_part,
    read_expiry,
    read_member,
)

NAME = "upload-" + "a" * 26
PARTS = ["part_" + "a" * 26, "part_" + "b" * 26]
CREATED = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp())
EXPIRY = CREATED + 3600


def make(outcome: str = "Pending", *, settled: bool = False, **request: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "request": {
            "accountName": "acme",
            "keyName": "key-1",
            "purpose": "user_data",
            "filename": "a.bin",
            "mediaType": "x/y",
            "bytes": 6,
            **request,
        },
        "outcome": outcome,
    }
    if outcome == "Completed":
        spec["completion"] = {
            "fileName": "file-" + "c" * 26,
            "time": "2026-11-22T00:10:00Z",
            "parts": [
                {"id": PARTS[0], "bytes": 4, "sha256": "1" * 64},
                {"id": PARTS[1], "bytes": 2, "sha256": "2" * 64},
            ],
        }
    return {
        "metadata": {"name": NAME, "creationTimestamp": "2026-11-22T00:00:00Z"},
        "spec": spec,
        "status": {"work": "Settled"} if settled else {},
    }


def test_pending_upload_accepts_requests_until_its_expiry() -> None:
    obj = make()
    for now in (CREATED, EXPIRY - 0.001):
        assert judge_part(obj, now) is Step.GO_ON
        assert judge_completion(obj, PARTS, now) is Step.GO_ON
        assert judge_cancellation(obj, now) is Step.GO_ON


@pytest.mark.parametrize("now", [EXPIRY, EXPIRY + 10**6])
def test_upload_after_its_hour_is_expired_before_any_answer(now: float) -> None:
    obj = make()
    assert is_overdue(obj, now)
    assert judge_part(obj, now) is Step.EXPIRE
    assert judge_completion(obj, PARTS, now) is Step.EXPIRE
    assert judge_cancellation(obj, now) is Step.EXPIRE


def test_same_outcome_is_a_repetition_also_after_the_expiry() -> None:
    for now in (CREATED, EXPIRY + 1):
        assert judge_completion(make("Completed"), PARTS, now) is Step.REPEAT
        assert judge_cancellation(make("Cancelled"), now) is Step.REPEAT
        assert not is_overdue(make("Completed"), now)


@pytest.mark.parametrize("ids", [PARTS[::-1], PARTS[:1], [*PARTS, "part_" + "d" * 26]])
def test_completion_by_other_parts_is_a_conflict(ids: list[str]) -> None:
    with pytest.raises(UploadConflict, match=r"^Upload upload_a{26} is already completed\.$"):
        judge_completion(make("Completed"), ids, CREATED)


@pytest.mark.parametrize("outcome", ["Completed", "Cancelled", "Expired"])
def test_losing_outcome_is_a_conflict(outcome: str) -> None:
    obj = make(outcome)
    with pytest.raises(UploadConflict) as told:
        judge_part(obj, CREATED)
    assert told.value.code == "upload_state_conflict"
    assert outcome.lower() in told.value.message
    if outcome != "Completed":
        with pytest.raises(UploadConflict):
            judge_completion(obj, PARTS, CREATED)
    if outcome != "Cancelled":
        with pytest.raises(UploadConflict):
            judge_cancellation(obj, CREATED)


def test_room_for_parts_is_twice_the_file_and_a_part() -> None:
    assert count_room(make(bytes=10)) == 20 + 67_108_864


def test_storage_of_an_upload_has_one_member_at_a_time() -> None:
    assert read_member(make()) == (NAME, 6)
    assert read_member(make("Completed")) == ("file-" + "c" * 26, 6)
    assert read_member(make("Completed", settled=True)) is None
    assert read_member(make("Cancelled")) is None
    assert read_member(make("Expired")) is None


def test_expiry_is_an_hour_after_the_creation() -> None:
    assert read_expiry(make()) == EXPIRY
