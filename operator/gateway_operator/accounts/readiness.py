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
from typing import Any, Protocol, TypeVar

from gateway_core.api.conditions import ConditionType, Reason, update_conditions
from gateway_core.api.resource import Resource
from gateway_core.api.times import format_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.workqueue import WorkQueue

R = TypeVar("R", bound=Resource)

Ref = str
"""An object of any kind: `<plural>/<name>`."""


def refer(kind: type[Resource], name: str) -> Ref:
    """The object of that kind and name, whether it is there or not."""
    return f"{kind.plural}/{name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at an object came to.

    `problem` keeps it from being used; `status` is to be written beside the condition; and after
    `again_in` seconds time alone may have changed something.
    """

    problem: Problem | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    again_in: float | None = None


class ReadinessKind(Protocol[R]):
    """The rules of one kind."""

    kind: type[R]
    table: Cache[R]

    contested: str
    """Plural of what its objects compete for: a change of one is felt by the others that refer to
    the same of these. Empty for none."""

    def list_references(self, obj: R) -> Iterable[Ref]:
        """The objects that its condition depends on, there or not."""
        ...

    async def check(self, obj: R) -> Finding:
        """Whether it can be used."""
        ...


class Dependents:
    """References, found by what they lead to. An object referred to need not be there."""

    def __init__(self) -> None:
        self._references: dict[Ref, frozenset[Ref]] = {}
        self._dependents: dict[Ref, set[Ref]] = {}

    def set_references(self, ref: Ref, references: Iterable[Ref]) -> frozenset[Ref]:
        """Has `ref` depend on these alone from now on; what it depended on before."""
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
        """Those that depend on `ref`."""
        return tuple(self._dependents.get(ref, ()))


CONFLICT_SECONDS = 0.2
LONGEST_WAIT = 600.0
MOST_MESSAGE = 1000
MOST_WRITES = 4
"""Conditions written at a time: very many objects that are new hold up no task's writes."""


class ReadinessController:
    """Looks at every object of `kinds`. Owned by shard 0's replica."""

    def __init__(
        self,
        kube: KubernetesClient,
        kinds: Sequence[ReadinessKind[Any]],
        now: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._kube = kube
        self._kinds = {kind.kind.plural: kind for kind in kinds}
        self._now = now
        self._queue = WorkQueue(self._look)
        self._dependents = Dependents()
        self._writing = asyncio.Semaphore(MOST_WRITES)
        self._seen: dict[Ref, tuple[str, int]] = {}
        self._problems: dict[Ref, Problem] = {}

    async def run(self) -> None:
        """Looks at all there is, and then at what changes, until cancelled."""
        for kind in self._kinds.values():
            for name in dict(kind.table.items()):
                self._follow(kind, name)
            kind.table.subscribe(partial(self._follow, kind))
        await self._queue.run()

    def _follow(self, kind: ReadinessKind[Any], name: str) -> None:
        """Takes up a change of an object; a change of its status alone is felt by no other."""
        ref, obj = refer(kind.kind, name), kind.table.get(name)
        if obj is None:
            self._queue.forget(ref)
            self._problems.pop(ref, None)
            is_changed = self._seen.pop(ref, None) is not None
        else:
            state = obj.metadata.uid, obj.metadata.generation
            is_changed = self._seen.get(ref) != state
            self._seen[ref] = state
            self._queue.add(ref)
        if not is_changed:
            return
        after = frozenset(kind.list_references(obj)) if obj is not None else frozenset()
        before = self._dependents.set_references(ref, after)
        self._spread(ref)
        for other in before | after:
            if kind.contested and other.startswith(kind.contested):
                self._spread(other)

    def _spread(self, ref: Ref) -> None:
        for dependent in self._dependents.find(ref):
            self._queue.add(dependent)

    async def _look(self, ref: Ref) -> None:
        plural, _, name = ref.partition("/")
        kind = self._kinds[plural]
        obj = kind.table.get(name)
        if obj is None:
            return
        finding = await kind.check(obj)
        if finding.again_in is not None:
            # short, since the queue keeps a plan that was overtaken until it is due
            self._queue.add_after(ref, min(finding.again_in, LONGEST_WAIT))
        if finding.problem != self._problems.get(ref):
            if finding.problem is None:
                del self._problems[ref]
            else:
                self._problems[ref] = finding.problem
            self._spread(ref)
        await self._show(ref, obj, finding)

    async def _show(self, ref: Ref, obj: Resource, finding: Finding) -> None:
        problem = finding.problem
        status = "False" if problem else "True"
        reason = problem.reason if problem else Reason.AVAILABLE
        message = problem.message[:MOST_MESSAGE] if problem else "in use"
        current = getattr(obj, "status").conditions or []  # noqa: B009 - each kind declares it
        ready = next((c for c in current if c.type == ConditionType.READY), None)
        shown = ready and (ready.status, ready.reason, ready.message, ready.observed_generation)
        if shown == (status, reason, message, obj.metadata.generation) and not finding.status:
            return
        conditions = update_conditions(
            [c.model_dump(by_alias=True, exclude_none=True) for c in current],
            [(ConditionType.READY, status, reason, message)],
            generation=obj.metadata.generation,
            now=format_time(self._now()),
        )
        change: dict[str, Any] = {
            **finding.status,
            "observedGeneration": obj.metadata.generation,
            "conditions": conditions,
        }
        meta = {"name": obj.metadata.name, "resourceVersion": obj.metadata.resource_version}
        try:
            async with self._writing:
                await self._kube.patch_status(type(obj).plural, {"metadata": meta}, change)
        except (WriteConflict, ObjectNotFound):
            self._queue.add_after(ref, CONFLICT_SECONDS)
