"""Who changed an object: noted on it, in the write that makes the change. Pure.

The latest changes of each object are kept, without any value: what changed, when, and by whom.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from gateway_core.api.ids import CHANGES_ANNOTATION, ENDING_ANNOTATION, PROGRAM
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time

MOST_CHANGES = 16
_MOST_TEXT = 300
_MOST_NOTED = 8192
"""Characters of the note on an object that are kept in memory: no process writes more."""
_OWN = (PROGRAM, "Python")
"""Names under which the gateway's processes write: before they had one, their HTTP client's."""


CREATED = "created"
REMOVED = "removed as "
"""Begins the text of a membership's end, before the role."""
GATEWAY = "gateway/"
"""By whom a change is that the gateway makes by itself."""
UNKNOWN_END = ("client/", "deleted")
"""The end of an object that another program has deleted: the API server does not say which."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change at `time` (RFC 3339).

    `by` is `user/<name>`, `key/<name>`, `client/<program>`, with no name where the program is not
    known, `application/<name>` or `gateway/`. `account` is the one that it concerns, where its
    object is of several.
    """

    time: str
    by: str
    text: str
    account: str = ""


def note_change(
    obj: Object | None, by: str, text: str, now: datetime, account: str = ""
) -> dict[str, str]:
    """Annotations of the object's next version, in which a change is noted."""
    known = [] if obj is None else read_changes(obj)
    latest = Change(format_time(now), by, text[:_MOST_TEXT], account)
    # the first one says who made the object
    kept = MOST_CHANGES - 1
    head, tail = known[:-kept], known[-kept:]
    if head and head[0].text == CREATED:
        tail = [head[0], *tail[1:]]
    return write_changes([*tail, latest])


def write_changes(changes: Iterable[Change]) -> dict[str, str]:
    """Return the annotation that notes these changes and no others."""
    noted = [
        (one.time, one.by, one.text, *([one.account] if one.account else [])) for one in changes
    ]
    return {CHANGES_ANNOTATION: orjson.dumps(noted).decode()}


def note_ending(by: str, text: str) -> dict[str, str]:
    """Annotation of an object that is about to be deleted: by whom, and in which words.

    It counts from the deletion on, so that an interrupted one leaves no row.
    """
    return {ENDING_ANNOTATION: orjson.dumps((by, text[:_MOST_TEXT])).decode()}


def read_ending(obj: Mapping[str, Any], otherwise: tuple[str, str] = UNKNOWN_END) -> Change:
    """Return the end of an object whose deletion has begun.

    `otherwise` is the name to show where no person is noted.
    """
    meta = obj["metadata"]
    noted = (meta.get("annotations") or {}).get(ENDING_ANNOTATION)
    by, text = otherwise
    if noted:
        # an admin may have written something else there
        with suppress(ValueError, TypeError):
            by, text = map(str, orjson.loads(noted))
    return Change(meta["deletionTimestamp"], by, text)


@dataclass(frozen=True, slots=True)
class History:
    """The changes of one object of many: a text, since most are never asked for."""

    noted: str = ""
    writers: tuple[Change, ...] = ()

    def list_changes(self) -> list[Change]:
        """Return all of them."""
        return [*_parse_changes(self.noted), *self.writers]


NO_HISTORY = History()


def read_history(obj: Mapping[str, Any]) -> History:
    """Return the changes that are noted on an object, and the writes of other programs."""
    noted = _find_note(obj)
    return History(noted if len(noted) <= _MOST_NOTED else "", tuple(find_writers(obj)))


def read_changes(obj: Mapping[str, Any]) -> list[Change]:
    """Return the changes that are noted on an object, the oldest first."""
    return _parse_changes(_find_note(obj))


def list_changes(obj: Mapping[str, Any]) -> list[Change]:
    """Return all changes of an object, noted ones and those of other programs."""
    return read_history(obj).list_changes()


def _find_note(obj: Mapping[str, Any]) -> str:
    note: str = (obj["metadata"].get("annotations") or {}).get(CHANGES_ANNOTATION, "")
    return note


def _parse_changes(text: str) -> list[Change]:
    if not text:
        return []
    try:
        return [Change(*map(str, entry)) for entry in orjson.loads(text)]
    except (ValueError, TypeError):
        return []  # an admin has written something else there


def find_writers(obj: Mapping[str, Any]) -> list[Change]:
    """Return the latest write of each other program that owns a field, such as kubectl.

    The API server notes programs, and no persons.
    """
    entries = [
        (entry["time"], entry["manager"])
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("manager", PROGRAM) not in _OWN
        and "time" in entry
        and not entry.get("subresource")
    ]
    # the API server takes the time of a write before that of the creation
    created = obj["metadata"].get("creationTimestamp", "")
    creates = any(time <= created for time, _ in entries)
    # notes are parsed only where they decide: most objects have no other writers
    if creates and any(change.time <= created for change in read_changes(obj)):
        # the gateway has created it
        creates = False
    return [
        Change(time, f"client/{program}", CREATED if creates and time <= created else "changed")
        for time, program in entries
    ]
