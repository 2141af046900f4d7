"""The first step: a task is checked, its money held, and the intent to submit recorded.

A task from REST is admitted already: its name carries the API's keyed tag, and its object the
amount that was held. Any other goes through the same validation, quote and hold here, and gets its
labels and finalizer; its own labels are not trusted.
"""

from dataclasses import dataclass

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.model import Route
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.limits import describe_shortage
from gateway_core.billing.prices import bound_task, quote, select_price
from gateway_core.storage.objects import ObjectMissing
from gateway_core.tasks.archive import InputDamaged, read_archived
from gateway_core.tasks.lifecycle import record_intent, reserved_micros
from gateway_operator.accounts.credentials import (
    SIGHT_SECONDS,
    NotYet,
    Refusal,
    check_model,
)
from gateway_operator.context import Context, find_lacking
from gateway_operator.outages import LEDGER
from gateway_operator.reconciler import AT_ONCE, Next, Superseded, after
from gateway_operator.tasks.cache import TaskWriter
from gateway_operator.tasks.calls import Inputs, ProviderCalls
from gateway_operator.tasks.holds import LEDGER_PAUSE, Holds
from gateway_operator.tasks.submission import PROVIDER_PAUSE, Submission


@dataclass(eq=False)
class Adoption:
    """Prepares tasks for their submission."""

    context: Context
    writer: TaskWriter
    holds: Holds
    submission: Submission
    inputs: Inputs
    calls: ProviderCalls

    async def unmark(self, task: GatewayTask) -> Next:
        """Remove the mark of a folded task from one that has not ended.

        A copy of an ended task's object brings it along (`kubectl get -o yaml`, `create`); with it
        the task would never be charged.
        """
        await self.writer.amend(task, {"metadata": {"labels": {FOLDED_LABEL: None}}})
        return AT_ONCE

    async def adopt(self, task: GatewayTask) -> Next:
        """Record the intent to submit."""
        context = self.context
        try:
            if self.holds.is_admitted(task):
                reserved = reserved_micros(task)
                if not await self.holds.ensure(task):
                    await self.submission.show_wait(task, Reason.WAITING_FOR_LEDGER, LEDGER)
                    return after(LEDGER_PAUSE)
            else:
                reserved = await self._admit(task)
                task = await self._mark(task)
                if not context.shards.owns(task.metadata.labels):
                    return AT_ONCE  # its shard's owner goes through the same, and on from here
        except Refusal as refusal:
            # the verdict first: labels alone would let the task run at the next step
            await self.writer.fail(task, refusal.reason, str(refusal), refusal.limit)
            await self._mark(self.writer.cache.get(task.metadata.name) or task)
            return AT_ONCE
        except NotYet:
            await self.submission.show_wait(task, Reason.WAITING_FOR_LEDGER, LEDGER)
            return after(LEDGER_PAUSE)
        # a job may exist already where the request names the route: then no limit may fail the task
        named = self.submission.find_intent(task)
        if named is None and not await self.holds.enforce(task, reserved):
            return AT_ONCE
        route = named or await self._choose_route(task)
        if route is None:
            return after(PROVIDER_PAUSE)
        context.failpoints.reach("before-intent")
        intent = record_intent(
            task,
            provider=route.provider_name,
            upstream_model=route.upstream_model or "",
            reserved=reserved,
            now=context.now(),
        )
        if named is not None:
            self.submission.hold_intent_back(task, intent)
        else:
            await self.submission.commit_intent(task, intent)
        context.failpoints.reach("after-intent")
        return AT_ONCE

    async def _mark(self, task: GatewayTask) -> GatewayTask:
        """Give the object the labels and the finalizer it should have, if they differ."""
        lacking = find_lacking(task.source, TASK_FINALIZER)
        return await self.writer.amend(task, {"metadata": lacking}) if lacking else task

    async def _choose_route(self, task: GatewayTask) -> Route | None:
        """Return the model's first route whose provider is usable."""
        model = self.inputs.find_model(task.spec.request)
        problems = []
        for route in model.routes if model is not None else ():
            if await self.calls.find(route.provider_name) is not None:
                return route
            problems.append(await self.calls.explain(route.provider_name))
        if problems:
            text = "; ".join(problems)
            await self.submission.show_wait(task, Reason.WAITING_FOR_PROVIDER, text)
        else:
            request = task.spec.request
            place = f"{request.service}/{request.action}"
            text = f"a GatewayModel that offers {request.model_id} at {place}, with a route"
            await self.submission.show_wait(task, Reason.WAITING_FOR_MODEL, text)
        return None

    async def _admit(self, task: GatewayTask) -> int:
        """Micro-dollars held for a task that REST did not admit. Refusal, NotYet."""
        request, name = task.spec.request, task.metadata.name
        age = self.context.age(task)
        if self.inputs.find_model(request) is None and age < SIGHT_SECONDS:
            raise NotYet
        account = self.holds.credentials.find_account(request, age)
        policy = self.holds.credentials.find_policy(request, age)
        check_model(policy, request.service, request.model_id)
        if await read_archived(self.context.store, request.account_name, name) is not None:
            raise Refusal(Reason.INVALID_REQUEST, "A task of this name was there before.")
        try:
            model, complete = await self.inputs.check(request)
        except (InputDamaged, ObjectMissing) as error:
            raise Refusal(Reason.INVALID_REQUEST, f"The input is unusable: {error}.") from error
        # at the moment that it will be charged by, however late the task is adopted
        price = select_price(model.prices, parse_time(task.metadata.creation_timestamp))
        if price is None:
            raise Refusal(Reason.INVALID_REQUEST, "The model has no price in force.")
        try:
            reserved = quote(price, bound_task(complete))
        except LookupError as error:
            raise Refusal(Reason.INVALID_REQUEST, f"The model has {error}.") from error
        # another owner may have adopted and ended it: a hold for a task that was charged already
        # would be charged again
        newest = await self.writer.refresh(name)
        if newest is None or newest.metadata.resource_version != task.metadata.resource_version:
            raise Superseded(f"{name}: it has changed")
        budgets = () if policy is None else policy.budgets
        answer = await self.holds.reservations.admit(account, name, request, reserved, budgets)
        if answer.stale:
            raise NotYet
        if answer.exceeded is not None:
            raise self.holds.refuse(answer.exceeded, reserved)
        if answer.underfunded:
            text = describe_shortage(answer.left, reserved, work="task")
            raise Refusal(Reason.INSUFFICIENT_BALANCE, text)
        return reserved
