"""The first step of a batch: all its lines are checked, and their money is held (§5.4)."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway_core.accounts.guardrails import Policy
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.errors import Forbidden, InvalidRequest, NotFound
from gateway_core.api.resource import Object, ObjectRef
from gateway_core.api.times import parse_time
from gateway_core.batches.lifecycle import find_deadline, record_failure, record_start
from gateway_core.batches.lines import LONG_BYTES, Problem, Validation
from gateway_core.batches.results import STEP_BYTES, read_pieces
from gateway_core.billing.prices import Usage, quote, select_price
from gateway_core.providers.catalog import Model
from gateway_core.providers.moderation import read_call
from gateway_core.storage.content import ContentDamaged
from gateway_core.storage.objects import ObjectMissing
from gateway_operator.batches.holds import Money
from gateway_operator.batches.intake import Intake, NotYet, Unfit
from gateway_operator.batches.tools import BatchTools

PAUSE_SECONDS = 2.0


class Checking:
    """Checks batches, a few at a time."""

    def __init__(self, tools: BatchTools, intake: Intake, money: Money) -> None:
        self._tools = tools
        self._intake = intake
        self._money = money

    async def validate(self, obj: Object, batch: GatewayBatch) -> bool:
        """Records that the batch is in progress, or by what it fails. Whether it can go on."""
        tools = self._tools
        obj = await self._intake.mark(obj, batch)
        batch = GatewayBatch.model_validate(obj)
        if not tools.base.shards.owns(batch.metadata.labels):
            return True
        checked: Validation | None = None
        try:
            self._check_time(batch)
            policy = self._intake.find_policy(batch)
            account, name = batch.spec.request.account_name, batch.metadata.name
            async with tools.checks.take(account, name, tools.left(batch)) as has_place:
                if not has_place:
                    return True
                # within: of a large File alone its list of segments is hundreds of KiB
                segments = await self._intake.find_segments(batch)
                checked = await self._check(segments)
            model = self._find_model(checked, policy)
            reserved = await self._money.hold(
                batch, self._price(batch, model), checked.total, policy
            )
        except Unfit as unfit:
            now, total = tools.now(), checked.total if checked else 0
            model_id = checked.model if checked else None
            failure = record_failure(batch, unfit.reason, unfit.problems, total, now, model_id)
            await tools.register.commit(obj, failure)
            tools.base.metrics.count_batch_end(failure["phase"], tools.age(batch))
            tools.base.failpoints.reach("after-batch-end")
            return True
        except NotYet:
            tools.queue.add_after(batch.metadata.name, PAUSE_SECONDS)
            return False
        tools.base.failpoints.reach("before-batch-start")
        start = record_start(
            batch,
            model_id=model.model_id,
            service=model.service,
            total=checked.total,
            reserved=reserved,
            now=tools.now(),
        )
        await tools.register.commit(obj, start)
        tools.base.failpoints.reach("after-batch-start")
        return True

    async def _check(self, segments: Sequence[ObjectRef]) -> Validation:
        validation = Validation(_check_body)
        try:
            async with aclosing(read_pieces(self._tools.base.store, segments)) as pieces:
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
        """Unfit where the window has ended: what the batch has waited for may never come."""
        if self._tools.now() >= find_deadline(batch):
            text = "The completion window ended before the batch could be begun."
            raise Unfit(Reason.DEADLINE_EXCEEDED, Problem("batch_expired", text))

    def _find_model(self, checked: Validation, policy: Policy | None) -> Model:
        """The model that all lines name, where nothing is wrong with any. Unfit."""
        if checked.problems:
            raise Unfit(Reason.INVALID_REQUEST, *checked.problems)
        if policy is not None and policy.closed:
            fault = Problem("model_not_allowed", "The key has more guardrails than it may have.")
            raise Unfit(Reason.MODEL_NOT_ALLOWED, fault)
        try:
            return self._tools.moderators.find_model(checked.model or "", policy)
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
    """As `batchlines.CheckBody`: what §6 says of a single call holds of a line."""
    try:
        read_call(body)
    except InvalidRequest as error:
        # a line has no other word for a wrong type (§5.4)
        code = "invalid_value" if error.code == "invalid_type" else error.code
        return code, error.message, error.param or "input"
    return None
