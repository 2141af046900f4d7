"""Who changed an object: noted on it, in the write that makes the change. Pure.

The latest changes of each object are kept, without any value: what changed, when, and by whom.
"""

from dataclasses import dataclass
from datetime import datetime

import orjson

from gateway_core.api.ids import CHANGES_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time

MOST_CHANGES = 16
_MOST_TEXT = 300


@dataclass(frozen=True, slots=True)
class Change:
    """A change at `time` (RFC 3339). `by` is `user/<name>` or `key/<name>`."""

    time: str
    by: str
    text: str


def note_change(obj: Object | None, by: str, text: str, now: datetime) -> dict[str, str]:
    """Annotations of the object's next version, in which a change is noted."""
    known = [] if obj is None else read_changes(obj)
    latest = Change(format_time(now), by, text[:_MOST_TEXT])
    kept = [(one.time, one.by, one.text) for one in (*known, latest)[-MOST_CHANGES:]]
    return {CHANGES_ANNOTATION: orjson.dumps(kept).decode()}


def read_changes(obj: Object) -> list[Change]:
    """The changes that are noted on an object, the oldest first."""
    text = (obj["metadata"].get("annotations") or {}).get(CHANGES_ANNOTATION, "[]")
    try:
        return [Change(str(time), str(by), str(what)) for time, by, what in orjson.loads(text)]
    except (ValueError, TypeError):
        return []  # an admin has written something else there
