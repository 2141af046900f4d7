"""A task's money is held before its job may start, so that its end finds a hold to charge.

Settling a hold is what charges in the counters: without a hold nothing is charged there, and their
sum falls behind that of the objects until they are next rebuilt. A rebuild gives a hold to every
open task whose object has the amount by then, and nothing else takes one away before the task has
ended. So a hold that stands once the amount is recorded (by the API with the object, by the
operator with the intent) stands or is rebuilt until the end, even if counters are lost or a process
is killed.

A hold taken earlier proves nothing: the counters may be emptied, and rebuilt from objects that do
not have the amount yet, while the write of it is in flight. The API takes its holds so, and so does
the adoption of a task made with kubectl. Therefore a process lets a task through to its provider
only when it has itself seen the hold stand after that: for an admitted task as it adopts it, for
another one after the intent, for either before it continues what another owner has begun. A job
that runs was let through once, so its hold is not checked again. A task that ends before that costs
nothing, and needs no hold.

The hold is taken only by a process that sees the task without a job. A write of a predecessor's
that is still in flight can give it a job then, or end it at no cost, but not charge it: no rebuild
can have counted its charge already, which a hold that is taken afterwards would double.

The credit limits of the key and guardrails are checked together with the hold, and again for tasks
that have waited since: an admin may have lowered one. They are checked until the call that may
start a job, and not after it: what a job costs is spent. A task counts under the guardrails that
are recorded with it, whatever its key has by now, so the limits of these apply.
"""

import asyncio
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import TASK_PREFIX
from gateway_core.api.task import GatewayTask
from gateway_core.billing.counters import BudgetState
from gateway_core.billing.limits import describe_failure, describe_limit
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.tasks.lifecycle import is_terminal, reserved_micros
from gateway_operator.accounts.credentials import Credentials, Refusal
from gateway_operator.billing.reservations import Reservations, make_hold
from gateway_operator.context import Context
from gateway_operator.reconciler import Superseded
from gateway_operator.tasks.cache import TaskWriter

LEDGER_PAUSE = 2.0
"""Seconds until the next step of a task whose account's money is not known."""
WAITED_SECONDS = 5.0
"""Limits of a younger task are not checked again: a change may take as long to arrive (§9.1)."""


@dataclass(eq=False)
class Holds:
    """The holds of tasks, as this process knows them; not needed to continue safely."""

    context: Context
    writer: TaskWriter
    reservations: Reservations
    credentials: Credentials
    _sure: set[str] = field(default_factory=set, init=False)
    _owed: set[str] = field(default_factory=set, init=False)
    _doubted: set[str] = field(default_factory=set, init=False)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s hold."""
        self._sure.discard(name)
        self._owed.discard(name)
        self._doubted.discard(name)

    def is_admitted(self, task: GatewayTask) -> bool:
        """Return whether the API has admitted the task: only the API makes names with this tag."""
        request = task.spec.request
        if request.reserved_micros is None or request.fingerprint is None:
            return False
        return self.context.is_minted(TASK_PREFIX, task.metadata.name, request.account_name)

    async def ensure(self, task: GatewayTask) -> bool:
        """Return whether the task, whose amount is in its object, may go on; if not, later.

        Takes the hold once in the life of this process, and again while they are away: an
        admitted task goes on all the same then, since its money was held when it was admitted;
        another one waits. Where the money is lost it is rebuilt first.

        A hold that did not stand may have been settled by another owner while this one was halted:
        then it is undone. Superseded; KubernetesUnavailable; what a rebuild raises.
        """
        name, account = task.metadata.name, task.spec.request.account_name
        if name in self._sure:
            return True
        try:
            hold = make_hold(name, task.spec.request, reserved_micros(task))
            if await self.reservations.counters.hold(account, hold):
                self._doubted.add(name)
        except CountersUnavailable:
            if self.is_admitted(task):
                self._owed.add(name)
                return True
        except CountersStale:
            await self.reservations.rebuild(account)
        else:
            if name in self._doubted:
                await self._undo_late(task)
            self._owed.discard(name)
            self._sure.add(name)
            return True
        return False

    async def make_up(self, task: GatewayTask) -> None:
        """Take the hold of a task that went on while the counters were away, if it is one.

        Its job runs, so nothing waits for it.
        """
        if task.metadata.name in self._owed:
            await self.ensure(task)

    async def _undo_late(self, task: GatewayTask) -> None:
        """Undo the hold of a task that has ended or gone, by the newest object. Superseded.

        Its cost was counted already, when the hold that stood was settled, or in a rebuild.
        """
        name = task.metadata.name
        newest = await self.writer.refresh(name)
        if newest is None or is_terminal(newest):
            await self.reservations.release(task.spec.request.account_name, name)
            raise Superseded(f"{name}: it has ended")
        self._doubted.discard(name)

    def refuse(self, state: BudgetState, micros: int) -> Refusal:
        """Return the refusal of a task whose `micros` do not fit in a budget."""
        title = self.credentials.name_subject(state.budget.subject)
        text = describe_limit(state, title, micros)
        return Refusal(Reason.CREDIT_LIMIT_EXCEEDED, text, describe_failure(state))

    async def enforce(self, task: GatewayTask, held: int) -> bool:
        """Return whether a task with a hold is within its limits; otherwise it has failed.

        `held` is that hold in micro-dollars, which the limits must cover together with all others.
        While the counters are away the task goes on: it was within them when its money was held.
        """
        if self.context.age(task) < WAITED_SECONDS:
            return True
        if await self._find_exceeded(task, held) is None:
            return True
        account = task.spec.request.account_name
        lock = self._locks.setdefault(account, asyncio.Lock())
        # one after the other, so that no more of them fail than are too many
        async with lock:
            state = await self._find_exceeded(task, held)
            if state is None:
                return True
            refusal = self.refuse(state, held)
            await self.writer.fail(task, refusal.reason, str(refusal), refusal.limit)
            # makes room for others at once; a failure is made up for as the task is closed
            await self.reservations.release(account, task.metadata.name)
        return False

    async def _find_exceeded(self, task: GatewayTask, own: int) -> BudgetState | None:
        """Return the first budget that is exceeded, as it stands without the task's own hold."""
        request = task.spec.request
        budgets = self.credentials.list_budgets(request)
        if not budgets:
            return None
        try:
            counters = self.reservations.counters
            states = await counters.read_budgets(request.account_name, budgets)
        except (CountersUnavailable, CountersStale):
            return None
        for state in states:
            limit = state.budget.limit
            if limit is not None and state.used + state.held > limit:
                return replace(state, held=max(0, state.held - own))
        return None
