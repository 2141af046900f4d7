"""Writes of other programs, as the API server notes them."""

from datetime import datetime
from typing import Any

import pytest

from gateway_core.accounts.changes import (
    MOST_CHANGES,
    Change,
    find_writers,
    note_change,
    note_ending,
    read_changes,
    read_ending,
)
from gateway_core.api.ids import ENDING_ANNOTATION, PROGRAM

BEFORE, CREATED, LATER = (f"2026-11-26T01:12:0{second}Z" for second in range(3))


def _write(manager: str, time: str = CREATED, **more: str) -> dict[str, str]:
    return {"manager": manager, "time": time, **more}


def test_writers_are_other_programs_with_what_they_did():
    fields = [
        _write("kubectl"),
        _write("terraform", LATER),
        _write(PROGRAM, LATER),
        _write("kubectl", LATER, subresource="status"),
        {"manager": "no time"},
    ]
    obj = {"metadata": {"creationTimestamp": CREATED, "managedFields": fields}}
    assert find_writers(obj) == [
        Change(CREATED, "client/kubectl", "created"),
        Change(LATER, "client/terraform", "changed"),
    ]


def test_write_that_began_a_second_before_the_creation_is_the_creation():
    obj = {"metadata": {"creationTimestamp": CREATED, "managedFields": [_write("kubectl", BEFORE)]}}
    assert find_writers(obj) == [Change(BEFORE, "client/kubectl", "created")]


def test_program_does_not_create_what_the_gateway_has_created():
    notes = note_change(None, "user/nora", "created", datetime.fromisoformat(CREATED))
    fields = [_write("terraform")]
    metadata = {"creationTimestamp": CREATED, "managedFields": fields, "annotations": notes}
    assert find_writers({"metadata": metadata}) == [Change(CREATED, "client/terraform", "changed")]


def test_object_of_unknown_writers_has_none():
    assert find_writers({"metadata": {}}) == []


def test_first_change_stays_among_the_latest() -> None:
    obj: dict[str, Any] = {"metadata": {"annotations": {}}}
    now = datetime.fromisoformat(CREATED)
    for text in ("created", *(f"change {n}" for n in range(40))):
        obj["metadata"]["annotations"] = note_change(obj, "user/nora", text, now)
    texts = [change.text for change in read_changes(obj)]
    assert texts == ["created", *(f"change {n}" for n in range(40 - MOST_CHANGES + 1, 40))]


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (note_ending("user/nora", "deleted"), ("user/nora", "deleted")),
        ({}, ("client/", "deleted")),
        ({ENDING_ANNOTATION: "by an admin"}, ("client/", "deleted")),
        ({ENDING_ANNOTATION: '{"a": 1, "b": 2, "c": 3}'}, ("client/", "deleted")),
    ],
)
def test_end_is_what_was_noted_before_the_deletion(
    note: dict[str, str], expected: tuple[str, str]
) -> None:
    end = read_ending({"metadata": {"deletionTimestamp": CREATED, "annotations": note}})
    assert (end.time, end.by, end.text) == (CREATED, *expected)
