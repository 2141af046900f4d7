"""What one task stands for in its account's money."""

from typing import Any

import pytest

from gateway_core.billing.ledger import Entry, read_entry


def make(status: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    obj: dict[str, Any] = {"spec": {"request": {"accountName": "demo", **request}}}
    return obj if status is None else {**obj, "status": status}


@pytest.mark.parametrize(
    ("obj", "entry"),
    [
        (make(), Entry()),
        (make(reservedMicros=500), Entry(held=500)),
        (make({}, reservedMicros=500), Entry(held=500)),
        (make({"phase": "Submitting", "reservedMicros": 300}), Entry(held=300)),
        (make({"phase": "Running", "reservedMicros": 300}, reservedMicros=500), Entry(held=300)),
        (make({"phase": "Running", "reservedMicros": 0}, reservedMicros=500), Entry(held=0)),
        (
            make(
                {
                    "phase": "Completed",
                    "chargedMicros": 250,
                    "reservedMicros": 300,
                    "completionTime": "2026-11-21T23:59:59Z",
                }
            ),
            Entry(charged=250, day="2026-11-21"),
        ),
        (
            make({"phase": "Failed", "chargedMicros": 0, "completionTime": "2026-11-21T10:00:00Z"}),
            Entry(day="2026-11-21"),
        ),
        (make({"phase": "Failed"}, reservedMicros=500), Entry()),
    ],
)
def test_entry(obj: dict[str, Any], entry: Entry) -> None:
    assert read_entry(obj) == entry
