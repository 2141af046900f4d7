"""The reconciler: the loop from a name on the work queue to the next step of its object.

Level-triggered: each step is decided from the newest object, so events may be lost, repeated or
reordered, and a process that is killed anywhere leaves nothing that another cannot continue.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_operator.workqueue import WorkQueue

T = TypeVar("T")

MOST_CONFLICTS = 3
"""Writes in a row that another writer was ahead of, before the work queue's back-off applies."""
CONFLICT_SECONDS = 0.2

_log = structlog.get_logger(__name__)


class Superseded(Exception):
    """Another writer changed the object during a step. It was read anew: decide again."""


class Draining(Exception):
    """The process is shutting down, so nothing more is begun."""


@dataclass(frozen=True, slots=True)
class Next:
    """What follows a step: the next step at once, or a later one after `seconds`, if any.

    In either case a change of the object starts the next step too.
    """

    at_once: bool = False
    seconds: float | None = None


AT_ONCE = Next(at_once=True)
ON_CHANGE = Next()


def after(seconds: float) -> Next:
    """Another step after a delay, unless the object changes before."""
    return Next(seconds=seconds)


class Reconciler(ABC, Generic[T]):
    """Base of all controllers. One work queue for each, one step at a time for each name."""

    def __init__(self, note_failure: Callable[[], None] = lambda: None) -> None:
        self.queue = WorkQueue(self.reconcile, note_failure)

    @abstractmethod
    async def find(self, name: str, /) -> T | None:
        """The newest object; None if nothing is left to do for that name."""

    @abstractmethod
    async def step(self, obj: T, /) -> Next:
        """Take the step that is due. Raises Superseded, Draining, and what the stores raise."""

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        self.queue.forget(name)

    def has_begun(self, name: str) -> bool:
        """Whether work in progress must be completed here, even while the queue drains."""
        return False

    def describe(self, obj: T, /) -> Mapping[str, str | None]:
        """Fields that log lines of a step carry."""
        return {}

    async def reconcile(self, name: str) -> None:
        """Take steps until the object has to wait. Raises what the stores raise."""
        conflicts = 0
        while True:
            obj = await self.find(name)
            if obj is None:
                self.forget(name)
                return
            if self.queue.is_draining and not self.has_begun(name):
                return
            # the context may be that of the object whose step has added this name
            clear_contextvars()
            bind_contextvars(**{key: text for key, text in self.describe(obj).items() if text})
            try:
                following = await self.step(obj)
            except Draining:
                return
            except Superseded as conflict:
                _log.debug("superseded", object=name, conflict=str(conflict))
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                continue
            except (WriteConflict, ObjectNotFound):
                # the step did not read the newest version: the watch may show it in a moment
                self.queue.add_after(name, CONFLICT_SECONDS)
                return
            conflicts = 0
            if following.seconds is not None:
                self.queue.add_after(name, following.seconds)
            if not following.at_once:
                return
