"""Which runs are new, and which were restored from a backup, as their metadata tells."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway_core.api.ids import CREATED_ANNOTATION
from gateway_core.api.times import format_precise_time, format_time
from gateway_core.tasks.restoring import is_new, is_restored

MADE = datetime(2026, 11, 21, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)


def make_run(delay: timedelta, note: str | None = format_precise_time(MADE)) -> dict[str, Any]:
    """A run whose object was created `delay` after the API had made it."""
    annotations = {} if note is None else {CREATED_ANNOTATION: note}
    created = format_time(MADE + delay)
    return {"metadata": {"creationTimestamp": created, "annotations": annotations}}


@pytest.mark.parametrize(
    ("delay", "since", "new", "restored"),
    [
        (timedelta(), -HOUR, True, False),
        (timedelta(seconds=-1), -HOUR, True, False),
        (timedelta(seconds=50), -HOUR, True, False),
        (timedelta(seconds=70), -HOUR, False, False),
        (timedelta(minutes=11), -HOUR, False, True),
        (timedelta(days=20), timedelta(days=19), False, True),
        (-HOUR, -2 * HOUR, False, False),
        (timedelta(), timedelta(seconds=-30), False, False),
        (timedelta(), HOUR, False, False),
    ],
)
def test_new_and_restored_runs_are_told_by_their_times(
    delay: timedelta, since: timedelta, new: bool, restored: bool
) -> None:
    run = make_run(delay)
    assert (is_new(run, MADE + since), is_restored(run)) == (new, restored)


@pytest.mark.parametrize("note", [None, "", "yesterday", "2026-11-21T10:00:00"])
def test_run_without_a_readable_note_is_neither(note: str | None) -> None:
    run = make_run(timedelta(days=1), note)
    assert (is_new(run, MADE - HOUR), is_restored(run)) == (False, False)
