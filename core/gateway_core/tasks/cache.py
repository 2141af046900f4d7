"""The tasks that this process knows: those with work left from the watch, ended ones as asked for.

Used by the finder and by admission. How many finished tasks there are decides neither how long a
start takes nor how much memory: the watch leaves them out, and a terminal state never changes
(I3), so one that was read once can be kept for as long as there is room.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Mapping
from sys import intern
from typing import Any

from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, TERMINAL_PHASES
from gateway_core.kube.informer import Cache, Listener
from gateway_core.tasks.rendering import render_terminal

MOST_ENDED = 20_000
"""Ended tasks kept, of about 1 kB each; what was not asked for the longest goes first."""
KEPT_SECONDS = 3600.0
"""How long one is kept without a read of its object: results expire after 30 days."""


class TaskRecord:
    """A task. `terminal` is the whole body of its GET once it has ended, None before."""

    __slots__ = ("account", "action", "has_callback", "service", "terminal")

    def __init__(
        self, account: str, service: str, action: str, has_callback: bool, terminal: bytes | None
    ) -> None:
        self.account = account
        self.service = service
        self.action = action
        self.has_callback = has_callback
        self.terminal = terminal


def project_task(obj: Mapping[str, Any]) -> TaskRecord:
    """The record of a GatewayTask, in the table or the archive."""
    request = obj["spec"]["request"]
    status = obj.get("status") or {}
    ended = status.get("phase") in TERMINAL_PHASES
    return TaskRecord(
        intern(request["accountName"]),
        intern(request["service"]),
        intern(request["action"]),
        "callbackUrl" in request,
        render_terminal(name_to_id(obj["metadata"]["name"]), status) if ended else None,
    )


class TaskCache(Cache[TaskRecord]):
    """`open_tasks` is fed by a watch of the tasks that are not Settled."""

    def __init__(
        self,
        open_tasks: Cache[TaskRecord],
        *,
        most_ended: int = MOST_ENDED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = open_tasks
        self._most = most_ended
        self._clock = clock
        self._ended: OrderedDict[str, tuple[float, TaskRecord]] = OrderedDict()

    @property
    def synced(self) -> bool:
        """Whether the open tasks have been read once."""
        return self._open.synced

    @property
    def staleness(self) -> float:
        """Seconds since the watch of open tasks last showed any sign of life."""
        return self._open.staleness

    def get(self, name: str) -> TaskRecord | None:
        """What is known of the task; None is no proof that there is none."""
        kept = self._ended.get(name)
        if kept is None:
            return self._open.get(name)
        since, record = kept
        if self._clock() - since > KEPT_SECONDS:
            del self._ended[name]
            return self._open.get(name)
        self._ended.move_to_end(name)
        return record

    def items(self) -> ItemsView[str, TaskRecord]:
        """The open tasks; a live view."""
        return self._open.items()

    def subscribe(self, listener: Listener) -> None:
        """Has `listener` called for open tasks: an ended one does not change."""
        self._open.subscribe(listener)

    def upsert(self, obj: Object) -> TaskRecord | None:
        """Takes in a task that was read or written by name; what is known of it now."""
        if (obj.get("status") or {}).get("work") != SETTLED:
            self._open.upsert(obj)
            return self.get(obj["metadata"]["name"])
        record = project_task(obj)
        self._ended[obj["metadata"]["name"]] = (self._clock(), record)
        if len(self._ended) > self._most:
            self._ended.popitem(last=False)
        return record
