"""A batch's money: held for all its lines before the first one runs, charged for those with a 2xx.

The hold is keyed by the batch's name. As with a task (`tasks.holds`) one that stands
once its amount is in the record stands, or is rebuilt, until the batch has ended; so each process
asks for it once before it runs lines.
"""

from dataclasses import dataclass, field

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.batches.lines import Problem
from gateway_core.billing.limits import describe_limit
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_operator.accounts.credentials import Credentials, NotYet
from gateway_operator.batches.inputs import Unfit
from gateway_operator.batches.store import BatchStore
from gateway_operator.billing.reservations import Reservations, make_hold
from gateway_operator.reconciler import Superseded


@dataclass(eq=False)
class BatchHolds:
    """Takes holds, and ensures that they stand."""

    store: BatchStore
    credentials: Credentials
    reservations: Reservations
    _sure: set[str] = field(default_factory=set, init=False)

    def forget(self, name: str) -> None:
        """Drop what is known of a batch's hold."""
        self._sure.discard(name)

    async def hold(self, batch: GatewayBatch, price: int, total: int, policy: Policy | None) -> int:
        """Micro-dollars held for `total` lines at `price`. Unfit, NotYet, Superseded."""
        name, request = batch.metadata.name, batch.spec.request
        account = self.credentials.accounts.get(request.account_name)
        if account is None:
            raise NotYet
        # another owner may have begun and ended it: a hold for a batch that was charged already
        # would be charged again
        newest = await self.store.refresh(name)
        version = newest.metadata.resource_version if newest else None
        if version != batch.metadata.resource_version:
            raise Superseded(f"{name}: it has changed")
        micros, budgets = price * total, policy.budgets if policy else ()
        try:
            answer = await self.reservations.admit(account, name, request, micros, budgets)
        except CountersUnavailable:
            raise NotYet from None
        if answer.stale:
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
        """Return once the hold stands whose amount is in the record. NotYet, Superseded.

        One that did not stand may have been settled by another owner while this one was halted:
        then it is undone.
        """
        name, request = batch.metadata.name, batch.spec.request
        if name in self._sure:
            return
        hold = make_hold(name, request, batch.status.reserved_micros or 0)
        try:
            is_new = await self.reservations.counters.hold(request.account_name, hold)
            if is_new and not await self._is_open(name):
                await self.reservations.release(request.account_name, name)
                raise Superseded(f"{name}: it has ended")
        except CountersUnavailable:
            raise NotYet from None
        except CountersStale:
            await self.reservations.rebuild(request.account_name)
            raise NotYet from None
        self._sure.add(name)

    async def _is_open(self, name: str) -> bool:
        newest = await self.store.refresh(name)
        return newest is not None and newest.status.phase not in TERMINAL_PHASES
