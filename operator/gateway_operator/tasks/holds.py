"""A task's money is held before its job may start, so that its end finds a hold to charge.

To settle a hold is what charges in the counters: without one nothing is charged there, and their
sum falls behind the record's until they are next rebuilt. A rebuild gives a hold to every open task
whose amount is in the record by then, and no other thing takes one away before the task has ended.
So a hold that stands once the amount is recorded (by the API with the object, by the operator with
the intent) stands or is rebuilt until the end, whatever is lost and whoever is killed.

One that was taken earlier proves nothing: the counters may be emptied, and rebuilt from a record
that does not have the amount yet, while the write of it is under way. The API takes its holds so,
and so does the adoption of a task made with kubectl. Therefore a process lets a task through to its
provider only when it has itself seen the hold stand after that: for an admitted task as it takes it
in, for an adopted one after the intent, for either before it goes on with what another has begun. A
job that runs was let through once, so it is not asked for again. A task that ends before it is let
through costs nothing, and needs no hold.

The hold is taken only by who sees the task without a job. A write of a predecessor's that is still
under way can give it a job then, or end it at no cost, but not charge it: no rebuild can have
counted its charge already, which a hold that is taken afterwards would double.
"""

from contextlib import suppress
from typing import Protocol

from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import TASK_PREFIX, Ownership, name_to_id
from gateway_core.api.limits import list_subjects
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.billing.counters import Hold
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.tasks.lifecycle import reserved_micros
from gateway_operator.tasks.statuswriter import Superseded
from gateway_operator.tasks.tools import Tools

LEDGER_PAUSE = 2.0
"""Seconds until a task is looked at again whose account's money cannot be told."""


class Payer(Protocol):
    """What a run's request says of who pays."""

    account_name: str
    key_name: str | None
    guardrail_names: list[str] | None


def make_hold(name: str, request: Payer, micros: int) -> Hold:
    """The hold of `micros` for the run `name`, under all that its request is counted under."""
    named = {"keyName": request.key_name, "guardrailNames": request.guardrail_names}
    return Hold(name, micros, list_subjects(named))


def read_funds(account: GatewayAccount) -> int | None:
    """Micro-dollars ever paid into an account; None where it is unlimited."""
    funds = account.spec.funds
    if account.spec.unlimited:
        return None
    return funds.paid_micros + funds.bonus_micros if funds else 0


class Holds:
    """What this process knows of its tasks' holds; nothing of it is needed to go on safely."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._sure: set[str] = set()
        self._owed: set[str] = set()
        self._doubted: set[str] = set()

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s hold."""
        self._sure.discard(name)
        self._owed.discard(name)
        self._doubted.discard(name)

    def is_admitted(self, task: GatewayTask) -> bool:
        """Whether the API has admitted the task: only it can make a name with this tag."""
        request = task.spec.request
        if request.reserved_micros is None or request.fingerprint is None:
            return False
        wire_id = name_to_id(task.metadata.name)
        return self._tools.mint.check(TASK_PREFIX, request.account_name, wire_id) is (
            Ownership.MINTED
        )

    async def ensure(self, task: GatewayTask) -> bool:
        """Whether the task, whose amount is in the record, may go on; if not, it is due later.

        Asks the counters once in the life of this process, and again while they are away: an
        admitted task goes on all the same then, since its money was held when it was admitted. An
        adopted one waits. Where the money is lost it is rebuilt first.

        A hold that did not stand may have been settled, by another owner who was there while this
        one was halted: then it is undone. Superseded; KubernetesUnavailable; what a rebuild raises.
        """
        name, account = task.metadata.name, task.spec.request.account_name
        if name in self._sure:
            return True
        try:
            hold = make_hold(name, task.spec.request, reserved_micros(task))
            if await self._tools.counters.hold(account, hold):
                self._doubted.add(name)
        except CountersUnavailable:
            if self.is_admitted(task):
                self._owed.add(name)
                return True
        except CountersStale:
            await self.rebuild(account)
        else:
            if name in self._doubted:
                await self._look_whether_late(task)
            self._owed.discard(name)
            self._sure.add(name)
            return True
        self._tools.look_again(task, LEDGER_PAUSE)
        return False

    async def make_up(self, task: GatewayTask) -> None:
        """Asks again for a task that has gone on while the counters were away, if it is one.

        Its job runs, so nothing waits for it.
        """
        if task.metadata.name in self._owed:
            await self.ensure(task)

    async def _look_whether_late(self, task: GatewayTask) -> None:
        """Undoes the hold of a task that has ended or gone, as the newest object tells. Superseded.

        What it cost is counted already, by whoever settled the hold that stood, or in a rebuild.
        """
        name, account = task.metadata.name, task.spec.request.account_name
        await self._tools.journal.refresh(name)
        newest = self._tools.live.get(name)
        if newest is None or (newest.get("status") or {}).get("phase") in TERMINAL_PHASES:
            # left to the sweeper where the counters are away, and gone where they are stale
            with suppress(CountersUnavailable, CountersStale):
                await self._tools.counters.settle(account, name, 0, self._tools.now())
            raise Superseded(f"{name}: it has ended")
        self._doubted.discard(name)

    async def rebuild(self, account: str) -> None:
        """Rebuilds the account's money, unless another is at it."""
        await self._tools.rebuilder.rebuild(account)
