"""Keeps `Ready` of accounts, users, keys, guardrails, models and providers true to the tables.

Fed by the same tables that the other parts decide by, so the condition says what they do. An object
is looked at when it changes, when one that it depends on does, and when time may have changed
something; so what a change costs grows with what depends on it, and not with what there is.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from gateway_core.contract.conditions import ConditionType, Reason, update_conditions
from gateway_core.contract.resource import Resource
from gateway_core.domain.catalog import Problem
from gateway_core.domain.lifecycle import format_time
from gateway_core.ports.clock import CLOCK
from gateway_core.ports.records import Missing, Outdated, Records
from gateway_operator.controllers.standing.dependents import Dependents
from gateway_operator.controllers.standing.kinds import Finding, Ref, StandingKind, refer
from gateway_operator.queue import WorkQueue

CONFLICT_SECONDS = 0.2
LONGEST_WAIT = 600.0
MOST_MESSAGE = 1000
MOST_WRITES = 4
"""Conditions written at a time: very many objects that are new hold up no task's writes."""


class StandingController:
    """Looks at every object of `kinds`. Owned by shard 0's replica."""

    def __init__(
        self,
        records: Records,
        kinds: Sequence[StandingKind[Any]],
        now: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._records = records
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

    def _follow(self, kind: StandingKind[Any], name: str) -> None:
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
                await self._records.patch_status(type(obj).plural, {"metadata": meta}, change)
        except (Outdated, Missing):
            self._queue.add_after(ref, CONFLICT_SECONDS)
