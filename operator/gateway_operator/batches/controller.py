"""Carries each batch through its steps; what kopf's feed and the work queue call."""

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from gateway_core.api.batch import ACTION, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.ids import REQUEST_ID_ANNOTATION, name_to_id
from gateway_core.api.resource import Object
from gateway_core.batches.lifecycle import (
    Step,
    find_deadline,
    is_running,
    is_unwanted,
    next_step,
    record_cancelling,
    record_failure,
)
from gateway_core.batches.lines import Problem
from gateway_core.batches.results import RecordsDamaged
from gateway_core.providers.catalog import Model
from gateway_core.storage.content import ContentDamaged
from gateway_core.storage.objects import ObjectMissing
from gateway_operator.batches.ending import Ending
from gateway_operator.batches.finalizing import Finalizing
from gateway_operator.batches.holds import Money
from gateway_operator.batches.intake import Intake, NotYet, Unfit
from gateway_operator.batches.running import Run
from gateway_operator.batches.tools import BatchTools
from gateway_operator.batches.validation import Checking
from gateway_operator.tasks.statuswriter import Superseded

MOST_CONFLICTS = 3
"""Writes that do not land one after the other before the work queue's back-off takes over."""
PAUSE_SECONDS = 2.0
MOMENT_SECONDS = 14.0
"""For runs to bring their calls to an end and store what came of them, as the process ends."""

_log = structlog.get_logger(__name__)


class BatchController:
    """Level-triggered: looks at the newest object, does what is due, again until it must wait."""

    def __init__(self, tools: BatchTools) -> None:
        self._tools = tools
        self.queue = tools.queue
        self._intake = Intake(tools)
        self._money = Money(tools)
        self._finalizing = Finalizing(tools, self._intake)
        self._runs: dict[str, Run] = {}
        checking, ending = Checking(tools, self._intake, self._money), Ending(tools)
        self._steps: dict[Step, Callable[[Object, GatewayBatch], Awaitable[bool]]] = {
            Step.VALIDATE: checking.validate,
            Step.RUN: self._run,
            Step.MARK: self._mark,
            Step.ABANDON: self._finalizing.abandon,
            Step.FINALIZE: self._finalizing.finalize,
            Step.CLOSE: ending.close,
        }

    @property
    def running(self) -> int:
        """How many batches are run here."""
        return len(self._runs)

    @property
    def open(self) -> int:
        """How many batches are known here that have work left."""
        return len(self._tools.register)

    @property
    def oldest_checkpoint(self) -> float:
        """Seconds since the oldest result ended that is not in the store yet, of any run."""
        return max((run.checkpoint_age for run in self._runs.values()), default=0.0)

    def observe(self, kind: str | None, obj: Object) -> None:
        """Takes in a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            # settled, or gone: either way nothing is left to be done
            self._tools.register.drop(name)
        elif not self._tools.register.upsert(obj):
            return
        run = self._runs.get(name)
        if run is not None:
            run.look()
        else:
            self._tools.wake(name)
            self._tools.queue.add(name)

    async def reconcile(self, name: str) -> None:
        """Does what is due for the batch, if anything. Raises what the ports raise."""
        conflicts = 0
        while not self._tools.queue.is_draining:
            obj = self._tools.register.get(name)
            if obj is None:
                self._forget(name)
                return
            batch = GatewayBatch.model_validate(obj)
            step = next_step(batch)
            if step is Step.NOTHING or not self._tools.base.shards.owns(batch.metadata.labels):
                self._tools.register.drop(name)
                self._forget(name)
                return
            self._name_in_logs(batch)
            try:
                if not await self._take(step, obj, batch):
                    return
            except Superseded as conflict:
                _log.debug("superseded", object=name, step=step.value, conflict=str(conflict))
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                continue
            conflicts = 0

    async def end(self) -> None:
        """Begins nothing more, and stores what the calls under way come to."""
        self._tools.queue.is_draining = True
        for run in list(self._runs.values()):
            run.stop()
        self._tools.wake()
        await self._tools.queue.drain(MOMENT_SECONDS)
        await self._tools.queue.stop(lambda _: False)

    async def _take(self, step: Step, obj: Object, batch: GatewayBatch) -> bool:
        """One step; whether the next one may follow at once."""
        try:
            return await self._steps[step](obj, batch)
        except Unfit as unfit:
            return await self._fail(obj, batch, unfit)
        except (ObjectMissing, ContentDamaged, RecordsDamaged) as error:
            # without the input nobody can be told of each line, nor without what they came to
            _log.error("bytes of a batch are lost", object=batch.metadata.name, error=str(error))
            fault = Problem("file_not_found", "The bytes of the batch are missing or damaged.")
            return await self._fail(obj, batch, Unfit(Reason.INVALID_REQUEST, fault))

    async def _run(self, obj: Object, batch: GatewayBatch) -> bool:
        """Runs what is left of the lines; whether there is more to do now."""
        tools, is_over = self._tools, self._is_over(batch)
        account, name = batch.spec.request.account_name, batch.metadata.name
        turns, seconds = (tools.endings, None) if is_over else (tools.runs, tools.left(batch))
        async with turns.take(account, name, seconds) as has_place:
            # without one: it may be cancelled by now, or its window has ended
            return await self._run_lines(batch, is_over) if has_place else True

    async def _run_lines(self, batch: GatewayBatch, is_over: bool) -> bool:
        name = batch.metadata.name
        try:
            segments = await self._intake.find_segments(batch)
            if not is_over:
                # one that runs no line any more needs no hold, and waits for nothing
                await self._money.ensure(batch)
        except NotYet:
            self._tools.queue.add_after(name, PAUSE_SECONDS)
            return False
        find_model = partial(self._find_model, batch)
        run = self._runs[name] = Run(self._tools, batch, segments, find_model)
        try:
            run_end = await run.run()
        finally:
            del self._runs[name]
        newest = self._tools.register.get(name)
        if run_end is None or newest is None:
            return True
        batch = GatewayBatch.model_validate(newest)
        if is_running(batch):
            # else another owner has fixed its results: there is one list of them
            await self._finalizing.fix(newest, batch, run_end)
        return True

    def _is_over(self, batch: GatewayBatch) -> bool:
        """Whether no more of its lines are to be begun."""
        return is_unwanted(batch) or self._tools.now() >= find_deadline(batch)

    def _find_model(self, batch: GatewayBatch) -> Model:
        """The model that the batch was begun with. NotFound where it is gone."""
        status = batch.status
        found = self._tools.base.catalog().find_model(
            status.service or "", ACTION, status.model_id or ""
        )
        return found or self._tools.moderators.find_model(status.model_id or "", None)

    async def _fail(self, obj: Object, batch: GatewayBatch, unfit: Unfit) -> bool:
        """Ends a batch whose bytes were lost while it ran: without Files, at no cost."""
        total = batch.status.counts.total if batch.status.counts else 0
        failure = record_failure(batch, unfit.reason, unfit.problems, total, self._tools.now())
        await self._finalizing.withdraw(batch)
        await self._tools.register.commit(obj, failure)
        self._tools.base.metrics.count_batch_end(failure["phase"], self._tools.age(batch))
        return True

    async def _mark(self, obj: Object, batch: GatewayBatch) -> bool:
        """Records that the batch is being cancelled."""
        await self._tools.register.commit(obj, record_cancelling(batch, self._tools.now()))
        return True

    def _forget(self, name: str) -> None:
        self._tools.queue.forget(name)
        self._money.forget(name)

    def _name_in_logs(self, batch: GatewayBatch) -> None:
        """Has whatever is logged from here on say which batch it is about."""
        clear_contextvars()  # what stands there may be of the batch that this one was added by
        names = {
            "batch": name_to_id(batch.metadata.name),
            "account": batch.spec.request.account_name,
            "request_id": batch.metadata.annotations.get(REQUEST_ID_ANNOTATION),
        }
        bind_contextvars(**{name: value for name, value in names.items() if value})
