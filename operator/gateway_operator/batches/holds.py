"""A batch's money: held for all its lines before the first is run, charged for those with a 2xx.

The hold is keyed by the batch's name. As with a task (`tasks.holds`) one that stands
once its amount is in the record stands, or is rebuilt, until the batch has ended; so each process
asks for it once before it runs lines.
"""

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.resource import Object
from gateway_core.batches.lines import Problem
from gateway_core.billing.counters import AdmissionCall
from gateway_core.billing.limits import describe_limit
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_operator.batches.intake import NotYet, Unfit
from gateway_operator.batches.tools import BatchTools
from gateway_operator.tasks.holds import make_hold, read_funds
from gateway_operator.tasks.statuswriter import Superseded


class Money:
    """Takes holds, and makes sure of them."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self._sure: set[str] = set()

    def forget(self, name: str) -> None:
        """Drops what is known of a batch's hold."""
        self._sure.discard(name)

    async def hold(self, batch: GatewayBatch, price: int, total: int, policy: Policy | None) -> int:
        """Micro-dollars held for so many lines at `price`. Unfit, NotYet, Superseded."""
        base, name, account = self._tools.base, batch.metadata.name, batch.spec.request.account_name
        payer = base.accounts.get(account)
        if payer is None:
            raise NotYet
        await self._look_whether_late(batch)
        micros = price * total
        call = AdmissionCall(
            account=account,
            requests_per_minute=base.defaults.choose_rate(payer.spec.requests_per_minute),
            hold=make_hold(name, batch.spec.request, micros),
            funds=read_funds(payer),
            rate="skip",
            budgets=policy.budgets if policy else (),
        )
        try:
            # an earlier attempt's hold, at another price, does until this amount is recorded
            answer = await base.counters.admit(call)
        except CountersUnavailable:
            raise NotYet from None
        if answer.stale:
            await base.rebuilder.rebuild(account)
            raise NotYet
        if answer.exceeded is not None:
            title = policy.name_subject(answer.exceeded.budget.subject) if policy else "a limit"
            text = describe_limit(answer.exceeded, title, micros)
            fault = Problem("credit_limit_exceeded", text)
            raise Unfit(Reason.CREDIT_LIMIT_EXCEEDED, fault)
        if answer.underfunded:
            fault = Problem(
                "insufficient_balance", "The account's balance does not cover the batch."
            )
            raise Unfit(Reason.INSUFFICIENT_BALANCE, fault)
        return micros

    async def ensure(self, batch: GatewayBatch) -> None:
        """Returns once the hold stands whose amount is in the record. NotYet, Superseded.

        One that did not stand may have been settled, by another owner who was there while this one
        was halted: then it is undone.
        """
        name, request = batch.metadata.name, batch.spec.request
        if name in self._sure:
            return
        counters = self._tools.base.counters
        hold = make_hold(name, request, batch.status.reserved_micros or 0)
        try:
            is_new = await counters.hold(request.account_name, hold)
            if is_new and not await self._is_open(batch):
                await counters.settle(request.account_name, name, 0, self._tools.now())
                raise Superseded(f"{name}: it has ended")
        except CountersUnavailable:
            raise NotYet from None
        except CountersStale:
            await self._tools.base.rebuilder.rebuild(request.account_name)
            raise NotYet from None
        self._sure.add(name)

    async def _look_whether_late(self, batch: GatewayBatch) -> None:
        """Reads the batch anew: another may have taken it in, and ended it. Superseded.

        A hold for one that was charged already would be charged again.
        """
        name = batch.metadata.name
        newest = await self._tools.register.refresh(name)
        version = newest["metadata"]["resourceVersion"] if newest else None
        if version != batch.metadata.resource_version:
            raise Superseded(f"{name}: it has changed")

    async def _is_open(self, batch: GatewayBatch) -> bool:
        newest: Object | None = await self._tools.register.refresh(batch.metadata.name)
        return newest is not None and (newest.get("status") or {}).get("phase") not in (
            TERMINAL_PHASES
        )
