"""Credit limits of a task's key and guardrails, as they are now.

They are checked in the step that takes a task's hold, and here again for those that have waited
since: an admin may have lowered one. They are checked until the call that may start a job, and not
after it: what a job costs is spent.

A task counts in the pools that are recorded with it, whatever guardrails its key has by now (see
`contract.limits.list_subjects`), so it is the limits of these that it is held against.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from weakref import WeakValueDictionary

from gateway_core.accounts.guardrails import (
    KEY_TITLE,
    Rules,
    make_budget,
    name_guardrail,
    read_rules,
)
from gateway_core.api.conditions import Reason
from gateway_core.api.limits import subject_of_guardrail, subject_of_key
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.counters import Budget, BudgetState
from gateway_core.billing.limits import describe_failure, describe_limit
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_operator.tasks.credentials import dump_spec
from gateway_operator.tasks.inputs import Unacceptable
from gateway_operator.tasks.tools import Tools

WAITED_SECONDS = 5.0
"""A younger task is not asked for again: a change may take as long to be known (contract §9.1)."""


class Limits:
    """Checks of tasks that wait."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def refuse_hold(self, state: BudgetState, micros: int) -> Unacceptable:
        """The refusal of a task whose `micros` do not fit in a budget."""
        title = self._name_subject(state.budget.subject)
        text = describe_limit(state, title, micros)
        return Unacceptable(Reason.CREDIT_LIMIT_EXCEEDED, text, describe_failure(state))

    async def enforce(self, obj: Object, task: GatewayTask, held: int) -> bool:
        """Whether a task whose hold stands is within its limits; if not it has failed by one.

        `held` is that hold's micro-dollars, which the limits must cover with everybody else's.
        While the counters are away it goes on: it was within them when its money was held.
        """
        age = self._tools.now() - parse_time(task.metadata.creation_timestamp)
        if age < timedelta(seconds=WAITED_SECONDS) or await self._find_exceeded(task, held) is None:
            return True
        account = task.spec.request.account_name
        lock = self._locks.setdefault(account, asyncio.Lock())
        # one after the other, so that no more of them fail than are too many
        async with lock:
            state = await self._find_exceeded(task, held)
            if state is None:
                return True
            refusal = self.refuse_hold(state, held)
            await self._tools.fail(obj, task, refusal.reason, str(refusal), refusal.limit)
            await self._release(task)
        return False

    async def _find_exceeded(self, task: GatewayTask, own: int) -> BudgetState | None:
        """The first budget that is exceeded, as it stands without the task's own hold."""
        budgets = self._list_budgets(task)
        if not budgets:
            return None
        account = task.spec.request.account_name
        try:
            states = await self._tools.counters.read_budgets(account, budgets)
        except (CountersUnavailable, CountersStale):
            return None
        for state in states:
            limit = state.budget.limit
            if limit is not None and state.used + state.held > limit:
                return replace(state, held=max(0, state.held - own))
        return None

    async def _release(self, task: GatewayTask) -> None:
        """Makes room for others at once; what fails is made up for as the task is closed."""
        name, account = task.metadata.name, task.spec.request.account_name
        try:
            await self._tools.counters.settle(account, name, 0, self._tools.now())
        except (CountersUnavailable, CountersStale):
            return

    def _list_budgets(self, task: GatewayTask) -> list[Budget]:
        """The limits of all that the task counts under.

        What is gone has none, nor has another account's that was made under the name since.
        """
        request, found = task.spec.request, list[tuple[str, Rules]]()
        account = request.account_name
        key = self._tools.keys.get(request.key_name) if request.key_name else None
        if key is not None and key.spec.account_name == account and key.spec.limit is not None:
            found.append((subject_of_key(key.metadata.name), read_rules(dump_spec(key))))
        for name in request.guardrail_names or ():
            guardrail = self._tools.policies.find_guardrail(name)
            if guardrail is not None and guardrail.account == account:
                found.append((subject_of_guardrail(name), guardrail.rules))
        budgets = (
            make_budget(subject, rules) for subject, rules in found if rules.limit is not None
        )
        return [budget for budget in budgets if budget is not None]

    def _name_subject(self, subject: str) -> str:
        kind, _, name = subject.partition("/")
        guardrail = self._tools.policies.find_guardrail(name) if kind == "guardrail" else None
        return KEY_TITLE if guardrail is None else name_guardrail(guardrail)
