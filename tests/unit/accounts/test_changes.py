"""Writes of other programs, as the API server notes them."""

from gateway_core.accounts.changes import Change, find_writers
from gateway_core.api.ids import PROGRAM

CREATED, LATER = "2026-11-26T01:12:00Z", "2026-11-26T01:13:00Z"


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


def test_object_of_unknown_writers_has_none():
    assert find_writers({"metadata": {}}) == []
