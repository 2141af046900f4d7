"""Credit limits of a task's key and guardrails, as they are now.

They are checked together with the hold, and again here for tasks that have waited since: an admin
may have lowered a limit. They are checked until the call that may start a job, and not after it:
what a job costs is spent.

A task counts in the pools that are recorded with it, whatever guardrails its key has by now (see
`contract.limits.list_subjects`), so the limits of these apply.
"""

import asyncio
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from gateway_core.api.conditions import Reason
from gateway_core.api.task import GatewayTask
from gateway_core.billing.counters import BudgetState
from gateway_core.billing.limits import describe_failure, describe_limit
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_operator.accounts.credentials import Credentials, Refusal
from gateway_operator.billing.reservations import Reservations
from gateway_operator.context import Context
from gateway_operator.tasks.cache import TaskWriter

WAITED_SECONDS = 5.0
"""A younger task is not asked for again: a change may take as long to be known (contract §9.1)."""


@dataclass(eq=False)
class Limits:
    """Checks of tasks that wait."""

    context: Context
    writer: TaskWriter
    reservations: Reservations
    credentials: Credentials
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    def refuse(self, state: BudgetState, micros: int) -> Refusal:
        """The refusal of a task whose `micros` do not fit in a budget."""
        title = self.credentials.name_subject(state.budget.subject)
        text = describe_limit(state, title, micros)
        return Refusal(Reason.CREDIT_LIMIT_EXCEEDED, text, describe_failure(state))

    async def enforce(self, task: GatewayTask, held: int) -> bool:
        """Whether a task whose hold stands is within its limits; otherwise it has failed by one.

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
        """The first budget that is exceeded, as it stands without the task's own hold."""
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
