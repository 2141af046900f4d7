"""The first step: a task is checked, its money held, and the intent to submit recorded.

A task from REST comes admitted. One made with kubectl carries no shard label: it goes through the
same validation, quote and hold here, and gets its labels and finalizer.
"""

from collections.abc import Callable
from typing import Any

from gateway_core.contract.conditions import Reason
from gateway_core.contract.errors import GatewayError
from gateway_core.contract.names import (
    ACCOUNT_LABEL,
    SHARD_LABEL,
    TASK_FINALIZER,
    shard_of,
)
from gateway_core.contract.task import GatewayTask, TaskRequest
from gateway_core.domain.catalog import Catalog, Model
from gateway_core.domain.lifecycle import record_intent, reserved_micros
from gateway_core.domain.pricing import quote, select_price
from gateway_core.domain.validation import apply_defaults, check_model, check_shape
from gateway_core.ports.counters import (
    AdmissionCall,
    CountersStale,
    CountersUnavailable,
    Hold,
)
from gateway_core.ports.objects import ObjectMissing
from gateway_core.ports.records import Object
from gateway_core.usecases.inputs import InputDamaged, load_input
from gateway_core.usecases.ledgers import rebuild_ledger
from gateway_operator.controllers.tasks.tools import Tools

PROVIDER_PAUSE = 3.0
LEDGER_PAUSE = 2.0


class Unacceptable(Exception):
    """A task made with kubectl that REST would have refused: why, in terms of a failed task."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Intake:
    """Takes tasks in."""

    def __init__(self, tools: Tools, note_intent: Callable[[str], None]) -> None:
        self._tools = tools
        self._note_intent = note_intent

    async def take_in(self, obj: Object, task: GatewayTask) -> bool:
        """Records the intent. Whether the task can go on at once."""
        tools, name = self._tools, task.metadata.name
        reserved = reserved_micros(task)
        if SHARD_LABEL not in task.metadata.labels:
            try:
                admitted = await self._adopt(task)
            except Unacceptable as refusal:
                obj = await tools.journal.amend(obj, _adoption(task))
                await tools.fail(obj, task, refusal.reason, str(refusal))
                return True
            if admitted is None:
                tools.queue.add_after(name, LEDGER_PAUSE)
                return False
            obj, reserved = await tools.journal.amend(obj, _adoption(task)), admitted
        else:
            await self._ensure_hold(task, reserved)
        request = task.spec.request
        model = tools.catalog().find_model(request.service, request.action, request.model_id)
        route = await self._choose_route(model) if model else None
        if route is None:
            tools.queue.add_after(name, PROVIDER_PAUSE)
            return False
        provider, upstream_model = route
        tools.failpoints.reach("before-intent")
        intent = record_intent(
            task,
            provider=provider,
            upstream_model=upstream_model,
            reserved=reserved,
            now=tools.now(),
        )
        await tools.journal.commit(obj, intent)
        self._note_intent(name)
        tools.failpoints.reach("after-intent")
        return True

    async def _choose_route(self, model: Model) -> tuple[str, str] | None:
        """The first route whose provider can be used, as (provider, upstream model)."""
        for route in model.routes:
            if await self._tools.providers.find(route.provider_name) is not None:
                return route.provider_name, route.upstream_model
        return None

    async def _ensure_hold(self, task: GatewayTask, reserved: int) -> None:
        """Takes the hold that admission took, should a rebuild have missed it.

        Without the counters the task goes on: its money was held when it was admitted, and a
        rebuild takes the hold from the object.
        """
        hold = Hold(task.metadata.name, reserved)
        try:
            await self._tools.counters.hold(task.spec.request.account_name, hold)
        except (CountersStale, CountersUnavailable):
            return

    async def _adopt(self, task: GatewayTask) -> int | None:
        """Micro-dollars held for a task made with kubectl; None if that must wait."""
        tools, request = self._tools, task.spec.request
        account = tools.accounts.get(request.account_name)
        if account is None or account.spec.suspended:
            problem = "is suspended" if account else "does not exist"
            raise Unacceptable(Reason.INVALID_REQUEST, f"Account {request.account_name} {problem}.")
        try:
            values = await load_input(tools.store, request)
        except (InputDamaged, ObjectMissing) as error:
            raise Unacceptable(
                Reason.INVALID_REQUEST, f"The input is unusable: {error}."
            ) from error
        model, complete = check_request(tools.catalog(), request, values)
        price = select_price(model.prices, tools.now())
        reserved = quote(price, complete) if price else 0
        call = AdmissionCall(
            account=request.account_name,
            requests_per_minute=account.spec.requests_per_minute,
            hold=Hold(task.metadata.name, reserved),
            funds=None if account.spec.unlimited else funds_of(account),
            counted=False,
        )
        answer = await tools.counters.admit(call)
        if answer.stale:
            await rebuild_ledger(tools.records, tools.store, tools.counters, request.account_name)
            return None
        if answer.underfunded:
            raise Unacceptable(
                Reason.INSUFFICIENT_BALANCE, "The account's balance does not cover the task."
            )
        return reserved


def funds_of(account: Any) -> int:
    """Micro-dollars ever paid into an account."""
    funds = account.spec.funds
    return funds.paid_micros + funds.bonus_micros if funds else 0


def check_request(
    catalog: Catalog, request: TaskRequest, values: dict[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """The model, and the values with defaults, of a request that REST would have taken.

    Raises Unacceptable with the reason REST would have given.
    """
    model = catalog.find_model(request.service, request.action, request.model_id)
    if model is None:
        raise Unacceptable(
            Reason.INVALID_REQUEST,
            f"Model {request.model_id} is not offered at {request.service}/{request.action}.",
        )
    body = {**values, "model": request.model_id, "callback_url": request.callback_url}
    try:
        given = check_shape(model.operation, body)
        complete = apply_defaults(model.operation, given, model.rules)
        check_model(model.model_id, given, complete, model.rules)
    except GatewayError as error:
        details = getattr(error, "errors", None) or {}
        texts = [f"{field} {text}" for field, problems in details.items() for text in problems]
        message = "; ".join(texts) or error.message
        raise Unacceptable(Reason.INVALID_REQUEST, message[:1000]) from error
    return model, complete


def _adoption(task: GatewayTask) -> dict[str, Any]:
    name = task.metadata.name
    return {
        "metadata": {
            "labels": {
                ACCOUNT_LABEL: task.spec.request.account_name,
                SHARD_LABEL: str(shard_of(name)),
            },
            "finalizers": sorted({*task.metadata.finalizers, TASK_FINALIZER}),
        }
    }
