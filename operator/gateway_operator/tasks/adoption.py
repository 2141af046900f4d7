"""The first step: a task is checked, its money held, and the intent to submit recorded.

A task from REST comes admitted: its name carries the API's keyed tag, and the amount that was held
for it. Any other goes through the same validation, quote and hold here, and gets its labels and
finalizer; what its labels say of it is not believed.
"""

from datetime import timedelta

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.account import GatewayAccount
from gateway_core.api.conditions import Reason
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FOLDED_LABEL,
    SHARD_LABEL,
    TASK_FINALIZER,
    shard_of,
)
from gateway_core.api.model import Route
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.counters import AdmissionCall
from gateway_core.billing.prices import bound_task, quote, select_price
from gateway_core.storage.objects import ObjectMissing
from gateway_core.tasks.archive import InputDamaged, load_input, read_archived
from gateway_core.tasks.lifecycle import record_intent, reserved_micros
from gateway_operator.tasks.credentials import Unseen, check_model, find_policy
from gateway_operator.tasks.holds import LEDGER_PAUSE, Holds, make_hold, read_funds
from gateway_operator.tasks.inputs import Unacceptable, check_request
from gateway_operator.tasks.limits import Limits
from gateway_operator.tasks.statuswriter import Superseded
from gateway_operator.tasks.submission import Submission
from gateway_operator.tasks.tools import Tools

PROVIDER_PAUSE = 3.0
SIGHT_SECONDS = 10.0
"""How long an account, model or key applied together with its task may take to be seen here."""


class _NotYet(Exception):
    """Something needed is not there yet; the task is looked at again after a pause."""


class Intake:
    """Takes tasks in."""

    def __init__(self, tools: Tools, holds: Holds, limits: Limits, submission: Submission) -> None:
        self._tools = tools
        self._holds = holds
        self._limits = limits
        self._submission = submission

    async def unmark(self, obj: Object, _task: GatewayTask) -> bool:
        """Takes the mark of a folded task from one that has not ended.

        A copy of an ended task's object brings it along (`kubectl get -o yaml`, `create`); with it
        the task would be charged to nobody.
        """
        await self._tools.journal.amend(obj, {"metadata": {"labels": {FOLDED_LABEL: None}}})
        return True

    async def take_in(self, obj: Object, task: GatewayTask) -> bool:
        """Records the intent. Whether the task can go on at once."""
        tools, name = self._tools, task.metadata.name
        try:
            if self._holds.is_admitted(task):
                reserved = reserved_micros(task)
                if not await self._holds.ensure(task):
                    return False
            else:
                reserved = await self._adopt(task)
                obj = await self._mark(obj, task)
                if not tools.shards.owns(obj["metadata"]["labels"]):
                    return True  # its shard's owner goes through the same, and on from here
        except Unacceptable as refusal:
            # the verdict first: labels alone would let the task run at the next look
            await tools.fail(obj, task, refusal.reason, str(refusal), refusal.limit)
            await self._mark(tools.live.get(name) or obj, task)
            return True
        except _NotYet:
            tools.look_again(task, LEDGER_PAUSE)
            return False
        named = self._submission.find_intent(task)
        if named is None and not await self._limits.enforce(obj, task, reserved):
            return True
        route = named or await self._choose_route(task)
        if route is None:
            tools.look_again(task, PROVIDER_PAUSE)
            return False
        tools.failpoints.reach("before-intent")
        intent = record_intent(
            task,
            provider=route.provider_name,
            upstream_model=route.upstream_model or "",
            reserved=reserved,
            now=tools.now(),
        )
        if named is not None:
            self._submission.hold_intent_back(obj, intent)
        else:
            await self._submission.commit_intent(obj, intent)
        tools.failpoints.reach("after-intent")
        return True

    async def _mark(self, obj: Object, task: GatewayTask) -> Object:
        """Gives the object the labels and the finalizer it should have, if they differ."""
        wanted = {
            ACCOUNT_LABEL: task.spec.request.account_name,
            SHARD_LABEL: str(shard_of(task.metadata.name)),
        }
        labels, finalizers = task.metadata.labels, task.metadata.finalizers
        if TASK_FINALIZER in finalizers and wanted.items() <= labels.items():
            return obj
        marks = {"labels": wanted, "finalizers": sorted({*finalizers, TASK_FINALIZER})}
        return await self._tools.journal.amend(obj, {"metadata": marks})

    async def _choose_route(self, task: GatewayTask) -> Route | None:
        """The model's first route that can be used."""
        request = task.spec.request
        model = self._tools.catalog().find_model(request.service, request.action, request.model_id)
        if model is None:
            return None
        for route in model.routes:
            if await self._tools.providers.find(route.provider_name) is not None:
                return route
        return None

    async def _adopt(self, task: GatewayTask) -> int:
        """Micro-dollars held for a task that REST did not admit. Unacceptable, _NotYet."""
        tools, request, name = self._tools, task.spec.request, task.metadata.name
        account = tools.accounts.get(request.account_name)
        model = tools.catalog().find_model(request.service, request.action, request.model_id)
        age = tools.now() - parse_time(task.metadata.creation_timestamp)
        if (account is None or model is None) and age < timedelta(seconds=SIGHT_SECONDS):
            raise _NotYet
        if account is None or account.spec.suspended:
            problem = "is suspended" if account else "does not exist"
            raise Unacceptable(Reason.INVALID_REQUEST, f"Account {request.account_name} {problem}.")
        policy = self._check_policy(task, age)
        if await read_archived(tools.store, request.account_name, name) is not None:
            raise Unacceptable(Reason.INVALID_REQUEST, "A task of this name was there before.")
        try:
            values = await load_input(tools.store, request)
        except (InputDamaged, ObjectMissing) as error:
            raise Unacceptable(
                Reason.INVALID_REQUEST, f"The input is unusable: {error}."
            ) from error
        model, complete = check_request(tools.catalog(), request, values)
        # at the moment it will be charged by, however late the task is looked at
        price = select_price(model.prices, parse_time(task.metadata.creation_timestamp))
        if price is None:
            raise Unacceptable(Reason.INVALID_REQUEST, "The model has no price in force.")
        try:
            reserved = quote(price, bound_task(complete))
        except LookupError as error:
            raise Unacceptable(Reason.INVALID_REQUEST, f"The model has {error}.") from error
        await self._look_whether_late(task)
        await self._hold(account, task, reserved, policy)
        return reserved

    def _check_policy(self, task: GatewayTask, age: timedelta) -> Policy | None:
        """What restricts the task, which is within it but for money. Unacceptable, _NotYet."""
        request = task.spec.request
        try:
            policy = find_policy(self._tools, request)
        except Unseen as unseen:
            if age < timedelta(seconds=SIGHT_SECONDS):
                raise _NotYet from unseen
            raise unseen.refusal from None
        check_model(policy, request.service, request.model_id)
        return policy

    async def _look_whether_late(self, task: GatewayTask) -> None:
        """Reads the task anew: another may have taken it in, and ended it. Superseded.

        A hold for one that was charged already would be charged again.
        """
        name = task.metadata.name
        await self._tools.journal.refresh(name)
        newest = self._tools.live.get(name)
        if (
            newest is None
            or newest["metadata"]["resourceVersion"] != task.metadata.resource_version
        ):
            raise Superseded(f"{name}: it has changed")

    async def _hold(
        self, account: GatewayAccount, task: GatewayTask, micros: int, policy: Policy | None
    ) -> None:
        call = AdmissionCall(
            account=account.metadata.name,
            requests_per_minute=self._tools.defaults.choose_rate(account.spec.requests_per_minute),
            hold=make_hold(task.metadata.name, task.spec.request, micros),
            funds=read_funds(account),
            rate="skip",
            budgets=() if policy is None else policy.budgets,
        )
        # an earlier attempt's hold, at another price, does until the intent is recorded: then it
        # becomes what is recorded
        answer = await self._tools.counters.admit(call)
        if answer.stale:
            await self._holds.rebuild(account.metadata.name)
            raise _NotYet
        if answer.exceeded is not None:
            raise self._limits.refuse_hold(answer.exceeded, micros)
        if answer.underfunded:
            raise Unacceptable(
                Reason.INSUFFICIENT_BALANCE, "The account's balance does not cover the task."
            )
