"""Keeps the `Ready` condition of the configuration kinds up to date.

These are accounts, users, keys, guardrails, models and providers. Fed by the same tables that the
other controllers decide by. An object is reconciled when it changes, when an object that it refers
to changes, and when time alone may have changed the result. So the cost of a change grows with the
number of dependents, not with the number of objects.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.resource import Resource
from gateway_core.api.times import format_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.events import Events
from gateway_operator.reconciler import ON_CHANGE, Next, Reconciler

R = TypeVar("R", bound=Resource)

Ref = str
"""An object of any kind: `<plural>/<name>`."""


def refer(kind: type[Resource], name: str) -> Ref:
    """Return the reference to an object, which need not exist."""
    return f"{kind.plural}/{name}"


def name_offered(what: str, name: str) -> Ref:
    """Return the reference to a model by its id, or to a service: `what` is models or providers."""
    return f"offered/{what}/{name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    `problem` keeps the object from being used; `note` is what an admin should know of one that can
    be used; `status` is written beside the condition; after `again_in` seconds time alone may have
    changed the result.
    """

    problem: Problem | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    again_in: float | None = None
    note: Problem | None = None


class ReadinessKind(Protocol[R]):
    """The rules of readiness of one kind."""

    kind: type[R]
    table: Cache[R]

    contested: str
    """Plural of what its objects compete for: a change of one is a reason to check the others that
    refer to the same. Empty for none."""

    def list_references(self, obj: R) -> Iterable[Ref]:
        """Return the objects that its condition depends on, whether they exist or not."""
        ...

    async def check(self, obj: R) -> Finding:
        """Check whether it can be used."""
        ...


@runtime_checkable
class Offering(Protocol):
    """A kind whose objects offer names that others may list before there is such an object."""

    def list_offered(self, obj: Any) -> Iterable[Ref]:
        """Return the names that the object offers, as of `name_offered`."""
        ...


class Dependents:
    """References by their target, which need not exist."""

    def __init__(self) -> None:
        self._references: dict[Ref, frozenset[Ref]] = {}
        self._dependents: dict[Ref, set[Ref]] = {}

    def set_references(self, ref: Ref, references: Iterable[Ref]) -> frozenset[Ref]:
        """Replace what `ref` depends on; what it depended on before."""
        before = self._references.pop(ref, frozenset())
        after = frozenset(references)
        for gone in before - after:
            self._dependents[gone].discard(ref)
            if not self._dependents[gone]:
                del self._dependents[gone]
        for new in after - before:
            self._dependents.setdefault(new, set()).add(ref)
        if after:
            self._references[ref] = after
        return before

    def find(self, ref: Ref) -> tuple[Ref, ...]:
        """Return the objects that depend on `ref`."""
        return tuple(self._dependents.get(ref, ()))


LONGEST_WAIT = 600.0
MOST_MESSAGE = 1000
MOST_WRITES = 4
"""Concurrent writes of conditions: a burst of new objects must not delay writes of tasks."""


def change_ready(
    current: Sequence[Mapping[str, Any]],
    generation: int,
    problem: Problem | None,
    *,
    now: datetime,
    good: str = "ready",
    note: Problem | None = None,
) -> dict[str, Any]:
    """Return the change of a status that shows `problem`, or else `note`, in `Ready`.

    The result is empty if it does.

    `current` are the conditions as they are, and `generation` is that of the checked object.
    """
    status, reason, message = "True", Reason.AVAILABLE, good
    if problem is not None:
        status, reason, message = "False", problem.reason, problem.message[:MOST_MESSAGE]
    elif note is not None:
        reason, message = note.reason, note.message[:MOST_MESSAGE]
    ready = next((c for c in current if c["type"] == ConditionType.READY), {})
    shown = [ready.get(name) for name in ("status", "reason", "message", "observedGeneration")]
    if shown == [status, reason, message, generation]:
        return {}
    conditions = update_conditions(
        current,
        [(ConditionType.READY, status, reason, message)],
        generation=generation,
        now=format_time(now),
    )
    return {"observedGeneration": generation, "conditions": conditions}


class ReadinessController(Reconciler[Resource]):
    """All objects of `kinds`, by reference. Run by the owner of shard 0."""

    def __init__(
        self,
        kube: KubernetesClient,
        kinds: Sequence[ReadinessKind[Any]],
        events: Events,
        now: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        super().__init__()
        self._kube = kube
        self._kinds = {kind.kind.plural: kind for kind in kinds}
        self._events = events
        self._now = now
        self._dependents = Dependents()
        self._writing = asyncio.Semaphore(MOST_WRITES)
        self._seen: dict[Ref, tuple[str, int]] = {}
        self._problems: dict[Ref, Problem] = {}
        self._offered: dict[Ref, frozenset[Ref]] = {}

    async def run(self) -> None:
        """Check all objects, and then those that change, until cancelled."""
        for kind in self._kinds.values():
            for name in dict(kind.table.items()):
                self._observe(kind, name)
            kind.table.subscribe(partial(self._observe, kind))
        await self.queue.run()

    def _observe(self, kind: ReadinessKind[Any], name: str) -> None:
        """Handle a change of an object; a change of its status alone affects no other object."""
        ref, obj = refer(kind.kind, name), kind.table.get(name)
        if obj is None:
            self.forget(ref)
            self._problems.pop(ref, None)
            is_changed = self._seen.pop(ref, None) is not None
        else:
            state = obj.metadata.uid, obj.metadata.generation
            is_changed = self._seen.get(ref) != state
            self._seen[ref] = state
            self.queue.add(ref)
        if not is_changed:
            return
        references = frozenset(kind.list_references(obj)) if obj is not None else frozenset()
        before = self._dependents.set_references(ref, references)
        self._spread(ref)
        # also those that it has left: another of them may be ready now
        for other in before | references:
            if kind.contested and other.startswith(kind.contested):
                self._spread(other)
        if isinstance(kind, Offering):
            offered = frozenset(kind.list_offered(obj)) if obj is not None else frozenset()
            for name in self._offered.pop(ref, frozenset()) ^ offered:
                self._spread(name)
            if offered:
                self._offered[ref] = offered

    def _spread(self, ref: Ref) -> None:
        for dependent in self._dependents.find(ref):
            self.queue.add(dependent)

    async def find(self, ref: Ref) -> Resource | None:
        """Return the object as its table has it."""
        plural, _, name = ref.partition("/")
        found: Resource | None = self._kinds[plural].table.get(name)
        return found

    async def step(self, obj: Resource) -> Next:
        """Check an object and show the result; if that changed, check its dependents too."""
        ref = refer(type(obj), obj.metadata.name)
        finding = await self._kinds[obj.plural].check(obj)
        if finding.again_in is not None:
            # before the write, which may fail; short, since the queue keeps superseded schedules
            self.queue.add_after(ref, min(finding.again_in, LONGEST_WAIT))
        if finding.problem != self._problems.get(ref):
            if finding.problem is None:
                del self._problems[ref]
            else:
                self._problems[ref] = finding.problem
            self._spread(ref)
        await self._show(obj, finding)
        return ON_CHANGE

    async def _show(self, obj: Resource, finding: Finding) -> None:
        current = getattr(obj, "status").conditions or []  # noqa: B009 - each kind declares it
        conditions = [c.model_dump(by_alias=True, exclude_none=True) for c in current]
        ready = change_ready(
            conditions,
            obj.metadata.generation,
            finding.problem,
            now=self._now(),
            note=finding.note,
        )
        change = {**finding.status, **ready}
        if not change:
            return
        # the version of the table's object: a check of an older one must not be shown
        meta = {"name": obj.metadata.name, "resourceVersion": obj.metadata.resource_version}
        async with self._writing:
            await self._kube.patch_status(type(obj).plural, {"metadata": meta}, change)
        if ready and finding.problem is not None:
            text = f"{finding.problem.reason}: {finding.problem.message}"
            self._events.warn_resource(obj, reason="NotReady", message=text)
