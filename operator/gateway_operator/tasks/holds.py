"""A task's money is held before its job may start, so that its end finds a hold to charge.

Settling a hold is what charges in the counters: without a hold nothing is charged there, and their
sum falls behind the record's until they are next rebuilt. A rebuild gives a hold to every open task
whose amount is in the record by then, and nothing else takes one away before the task has ended. So
a hold that stands once the amount is recorded (by the API with the object, by the operator with the
intent) stands or is rebuilt until the end, whatever is lost and whichever process is killed.

A hold taken earlier proves nothing: the counters may be emptied, and rebuilt from a record that
does not have the amount yet, while the write of it is in flight. The API takes its holds so, and so
does the adoption of a task made with kubectl. Therefore a process lets a task through to its
provider only when it has itself seen the hold stand after that: for an admitted task as it adopts
it, for another one after the intent, for either before it continues what another owner has begun. A
job that runs was let through once, so it is not asked for again. A task that ends before it is let
through costs nothing, and needs no hold.

The hold is taken only by a process that sees the task without a job. A write of a predecessor's
that is still in flight can give it a job then, or end it at no cost, but not charge it: no rebuild
can have counted its charge already, which a hold that is taken afterwards would double.
"""

from dataclasses import dataclass, field

from gateway_core.api.ids import TASK_PREFIX, Ownership, name_to_id
from gateway_core.api.task import GatewayTask
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.tasks.lifecycle import is_terminal, reserved_micros
from gateway_operator.billing.reservations import Reservations, make_hold
from gateway_operator.context import Context
from gateway_operator.reconciler import Superseded
from gateway_operator.tasks.cache import TaskWriter

LEDGER_PAUSE = 2.0
"""Seconds until the next step of a task whose account's money is not known."""


@dataclass(eq=False)
class Holds:
    """What this process knows of its tasks' holds; none of it is needed to continue safely."""

    context: Context
    writer: TaskWriter
    reservations: Reservations
    _sure: set[str] = field(default_factory=set, init=False)
    _owed: set[str] = field(default_factory=set, init=False)
    _doubted: set[str] = field(default_factory=set, init=False)

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s hold."""
        self._sure.discard(name)
        self._owed.discard(name)
        self._doubted.discard(name)

    def is_admitted(self, task: GatewayTask) -> bool:
        """Whether the API has admitted the task: only the API can make a name with this tag."""
        request = task.spec.request
        if request.reserved_micros is None or request.fingerprint is None:
            return False
        wire_id = name_to_id(task.metadata.name)
        checked = self.context.mint.check(TASK_PREFIX, request.account_name, wire_id)
        return checked is Ownership.MINTED

    async def ensure(self, task: GatewayTask) -> bool:
        """Whether the task, whose amount is in the record, may go on; if not, later.

        Asks the counters once in the life of this process, and again while they are away: an
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
        """Ask again for a task that went on while the counters were away, if it is one.

        Its job runs, so nothing waits for it.
        """
        if task.metadata.name in self._owed:
            await self.ensure(task)

    async def _undo_late(self, task: GatewayTask) -> None:
        """Undo the hold of a task that has ended or gone, as the newest object tells. Superseded.

        Its cost was counted already, when the hold that stood was settled, or in a rebuild.
        """
        name = task.metadata.name
        newest = await self.writer.refresh(name)
        if newest is None or is_terminal(newest):
            await self.reservations.release(task.spec.request.account_name, name)
            raise Superseded(f"{name}: it has ended")
        self._doubted.discard(name)
