"""The first step of a batch: its lines are validated, and its money is held (§5.4)."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import TERMINAL_PHASES, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.errors import Forbidden, InvalidRequest, NotFound
from gateway_core.api.resource import ObjectRef
from gateway_core.api.times import parse_time
from gateway_core.batches.lifecycle import find_deadline, record_failure, record_start
from gateway_core.batches.lines import LONG_BYTES, Problem, Validation
from gateway_core.batches.results import STEP_BYTES, read_pieces
from gateway_core.billing.limits import describe_limit, describe_shortage
from gateway_core.billing.prices import Usage, quote, select_price
from gateway_core.providers.catalog import Model
from gateway_core.providers.moderation import read_call
from gateway_core.providers.moderators import Moderators
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.content import ContentDamaged
from gateway_core.storage.objects import ObjectMissing
from gateway_operator.accounts.credentials import Credentials, NotYet
from gateway_operator.batches.bounds import Slots
from gateway_operator.batches.store import LEDGER, TURN, BatchInputs, BatchStore, Unfit
from gateway_operator.billing.reservations import Reservations, make_hold
from gateway_operator.context import Context
from gateway_operator.reconciler import AT_ONCE, Next, Superseded, after


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
            text = describe_shortage(answer.left, micros, work="batch")
            fault = Problem("insufficient_balance", text)
            raise Unfit(Reason.INSUFFICIENT_BALANCE, fault)
        return micros

    async def ensure(self, batch: GatewayBatch) -> None:
        """Return once the hold stands whose amount is recorded. NotYet, Superseded.

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


PAUSE_SECONDS = 2.0


@dataclass(eq=False)
class Validator:
    """Validates batches, a few at a time."""

    context: Context
    store: BatchStore
    inputs: BatchInputs
    holds: BatchHolds
    moderators: Moderators
    slots: Slots

    async def validate(self, batch: GatewayBatch) -> Next:
        """Record that the batch is in progress, or why it fails."""
        context = self.context
        batch = await self.inputs.mark(batch)
        if not context.shards.owns(batch.metadata.labels):
            return AT_ONCE
        checked: Validation | None = None
        try:
            self._check_time(batch)
            policy = self.inputs.find_policy(batch)
            account, name = batch.spec.request.account_name, batch.metadata.name
            if not self.slots.has_room(account) and await self.store.show_wait(
                batch, Reason.WAITING_FOR_SLOT, TURN
            ):
                return AT_ONCE
            async with self.slots.take(account, name, self.store.seconds_left(batch)) as has_slot:
                if not has_slot:
                    return AT_ONCE
                # inside the slot: the list of segments of a large File alone is hundreds of KiB
                checked = await self._check(await self.inputs.find_segments(batch))
            model = self._find_model(checked, policy)
            price = self._price(batch, model)
            reserved = await self.holds.hold(batch, price, checked.total, policy)
        except Unfit as unfit:
            now, total = context.now(), checked.total if checked else 0
            model_id = checked.model if checked else None
            failure = record_failure(batch, unfit.reason, unfit.problems, total, now, model_id)
            await self.store.fail(batch, unfit.reason, failure)
            context.failpoints.reach("after-batch-end")
            return AT_ONCE
        except NotYet:
            await self.store.show_wait(batch, Reason.WAITING_FOR_LEDGER, LEDGER)
            return after(PAUSE_SECONDS)
        context.failpoints.reach("before-batch-start")
        start = record_start(
            batch,
            model_id=model.model_id,
            service=model.service,
            total=checked.total,
            reserved=reserved,
            now=context.now(),
        )
        await self.store.commit(batch, start)
        context.failpoints.reach("after-batch-start")
        return AT_ONCE

    async def _check(self, segments: Sequence[ObjectRef]) -> Validation:
        validation = Validation(_check_body)
        try:
            async with aclosing(read_pieces(self.context.store, segments)) as pieces:
                async for piece in pieces:
                    for start in range(0, len(piece), STEP_BYTES):
                        step = piece[start : start + STEP_BYTES]
                        if validation.kept > LONG_BYTES and b"\n" in step:
                            await asyncio.to_thread(validation.feed, step)
                        else:
                            validation.feed(step)
                        await asyncio.sleep(0)
                    if validation.is_over:
                        break
        except (ObjectMissing, ContentDamaged):
            fault = Problem("file_not_found", "The bytes of the input File are missing or damaged.")
            raise Unfit(Reason.INVALID_REQUEST, fault) from None
        validation.end()
        return validation

    def _check_time(self, batch: GatewayBatch) -> None:
        """Raise Unfit where the window has ended: what the batch waits for may never come."""
        if self.context.now() >= find_deadline(batch):
            text = "The completion window ended before the batch could be begun."
            raise Unfit(Reason.DEADLINE_EXCEEDED, Problem("batch_expired", text))

    def _find_model(self, checked: Validation, policy: Policy | None) -> Model:
        """Return the model that all lines name, if all lines are valid. Unfit."""
        if checked.problems:
            raise Unfit(Reason.INVALID_REQUEST, *checked.problems)
        if policy is not None and policy.closed:
            fault = Problem("model_not_allowed", "The key has more guardrails than it may have.")
            raise Unfit(Reason.MODEL_NOT_ALLOWED, fault)
        try:
            return self.moderators.find_model(checked.model or "", policy)
        except NotFound as error:
            reason, code = Reason.INVALID_REQUEST, "model_not_found"
            text = error.message
        except Forbidden as error:
            reason, code, text = Reason.MODEL_NOT_ALLOWED, "model_not_allowed", error.message
        raise Unfit(reason, Problem(code, text, "body.model", checked.model_line))

    def _price(self, batch: GatewayBatch, model: Model) -> int:
        """Micro-dollars a line, at the time the batch was made. Unfit."""
        price = select_price(model.prices, parse_time(batch.metadata.creation_timestamp))
        try:
            if price is not None:
                return quote(price, Usage())
        except LookupError:
            pass
        text = f"Model {model.model_id} has no price in force."
        raise Unfit(Reason.INVALID_REQUEST, Problem("model_not_found", text, "body.model"))


def _check_body(body: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Check a line's body as `batchlines.CheckBody`: by §6, as that of a single call."""
    try:
        read_call(body)
    except InvalidRequest as error:
        # a line has no other word for a wrong type (§5.4)
        code = "invalid_value" if error.code == "invalid_type" else error.code
        return code, error.message, error.param or "input"
    return None
