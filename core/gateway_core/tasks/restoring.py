"""Runs restored from a backup without their status, as `kubectl create` and most tools do. Pure.

The API notes in each object when it makes it. A restored object brings the note along, and has the
time of the restore as its creation time. The archive says what has become of the run.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway_core.api.ids import CREATED_ANNOTATION

CREATE_TIME = timedelta(seconds=60)
"""The Kubernetes API may process a create for as long; clocks differ by less."""
RESTORE_TIME = timedelta(minutes=10)
"""An object that is made so long after its first creation is certainly restored."""


def is_new(run: Mapping[str, Any], since: datetime) -> bool:
    """Return whether the run is certainly new to a process that has watched since `since`."""
    origin, delay = _read_origin(run)
    return origin is not None and abs(delay) <= CREATE_TIME and origin >= since + CREATE_TIME


def is_restored(run: Mapping[str, Any]) -> bool:
    """Return whether the object was certainly made from a backup."""
    origin, delay = _read_origin(run)
    return origin is not None and delay > RESTORE_TIME


def is_made_after(run: Mapping[str, Any], time: str, margin: timedelta = timedelta()) -> bool:
    """Return whether the object was created after `time`, which a restored status has kept."""
    created = datetime.fromisoformat(run["metadata"]["creationTimestamp"])
    return created > datetime.fromisoformat(time) + margin


def is_same_run(run: Mapping[str, Any], archived: Mapping[str, Any]) -> bool:
    """Return whether an archived object is of that run: the request never changes."""
    return bool(run["spec"]["request"] == archived["spec"]["request"])


def _read_origin(run: Mapping[str, Any]) -> tuple[datetime | None, timedelta]:
    """When the API made the run, if it says so, and how much later the object was created."""
    meta = run["metadata"]
    try:
        origin = datetime.fromisoformat((meta.get("annotations") or {})[CREATED_ANNOTATION])
        return origin, datetime.fromisoformat(meta["creationTimestamp"]) - origin
    except (KeyError, ValueError, TypeError):
        return None, timedelta()
