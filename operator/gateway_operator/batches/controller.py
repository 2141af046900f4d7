"""The controller of batches: which step is due, what events start, and the shutdown."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from gateway_core.api.batch import ACTION, TERMINAL_PHASES, GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.ids import BATCH_FINALIZER, REQUEST_ID_ANNOTATION, name_to_id
from gateway_core.api.resource import Object
from gateway_core.batches import lifecycle
from gateway_core.batches.lines import Problem
from gateway_core.batches.results import RecordsDamaged
from gateway_core.files.files import FileRecorder
from gateway_core.files.quota import StorageQuota
from gateway_core.files.quota_counters import StorageLedger
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.moderators import Moderators
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import ModerationUpstream
from gateway_core.storage.content import ContentDamaged
from gateway_core.storage.objects import ObjectMissing
from gateway_operator.accounts.credentials import Credentials, NotYet
from gateway_operator.batches.bounds import BatchSlots
from gateway_operator.batches.finalizing import Finalizing
from gateway_operator.batches.limiter import ProviderLimiters
from gateway_operator.batches.running import Run, Runner
from gateway_operator.batches.store import LEDGER, TURN, BatchInputs, BatchStore, Unfit
from gateway_operator.batches.validation import BatchHolds, Validator
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.reservations import Reservations
from gateway_operator.context import Context
from gateway_operator.outages import Outages
from gateway_operator.reconciler import AT_ONCE, Next, Reconciler, after
from gateway_operator.tasks.calls import ProviderCalls
from gateway_operator.tasks.restoring import NOT_ARCHIVED, Restoring

PAUSE_SECONDS = 2.0
MOMENT_SECONDS = 14.0
"""For runs to complete their calls and store the results, as the process shuts down."""

_log = structlog.get_logger(__name__)


class BatchController(Reconciler[GatewayBatch]):
    """Takes each batch through its steps, from validation to the removal of its finalizer."""

    def __init__(
        self,
        context: Context,
        *,
        reservations: Reservations,
        credentials: Credentials,
        calls: ProviderCalls,
        catalog: Callable[[], Catalog],
        providers: Providers[ModerationUpstream],
        ledger: StorageLedger,
        files: FileRecorder,
        aggregator: UsageAggregator,
    ) -> None:
        super().__init__(context.metrics.work_failures.inc)
        self._context = context
        self._catalog = catalog
        self._moderators = moderators = Moderators(catalog, providers)
        self._store = store = BatchStore(context)
        self.slots = slots = BatchSlots()
        self.runner = Runner(
            context,
            store,
            slots.runs,
            ProviderLimiters(providers.table, context.shards),
            moderators,
            calls,
        )
        self._inputs = inputs = BatchInputs(context, store, credentials)
        self._holds = BatchHolds(store, credentials, reservations)
        self._finalizing = Finalizing(
            context,
            store,
            inputs,
            files,
            StorageQuota(context.kube, ledger),
            slots.endings,
            reservations,
            aggregator,
        )
        validator = Validator(context, store, inputs, self._holds, moderators, slots.checks)
        self._restoring = Restoring(
            context,
            store.cache,
            store,
            reservations,
            BATCH_FINALIZER,
            inputs.is_admitted,
            _refuse_restored,
        )
        self._outages = Outages()
        self._runs: dict[str, Run] = {}
        self._steps: dict[lifecycle.Step, Callable[[GatewayBatch], Awaitable[Next]]] = {
            lifecycle.Step.VALIDATE: validator.validate,
            lifecycle.Step.RUN: self._run,
            lifecycle.Step.MARK: self._mark,
            lifecycle.Step.ABANDON: self._finalizing.abandon,
            lifecycle.Step.FINALIZE: self._finalizing.finalize,
            lifecycle.Step.CLOSE: self._finalizing.close,
        }

    @property
    def running(self) -> int:
        """Batches that are run here."""
        return len(self._runs)

    @property
    def open(self) -> int:
        """Known batches with work left."""
        return len(self._store.cache)

    @property
    def oldest_checkpoint(self) -> float:
        """Seconds that the oldest result of any run has waited to be stored."""
        return max((run.checkpoint_age for run in self._runs.values()), default=0.0)

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            # settled, or gone: either way no work is left
            self._store.cache.drop(name)
        elif not self._store.cache.upsert(obj):
            return
        run = self._runs.get(name)
        if run is not None:
            run.look()
        else:
            self.slots.wake(name)
            self.queue.add(name)

    def look_again(self) -> None:
        """Reconcile all batches."""
        for name in self._store.cache.names():
            self.queue.add(name)

    async def find(self, name: str) -> GatewayBatch | None:
        """Return the newest known batch."""
        return self._store.cache.get(name)

    async def step(self, batch: GatewayBatch) -> Next:
        """Take the step that is due, if any."""
        name = batch.metadata.name
        async with self._outages.shown(name, partial(self._show_wait, name)):
            return await self._take_step(batch)

    async def _take_step(self, batch: GatewayBatch) -> Next:
        step = lifecycle.next_step(batch)
        if step is lifecycle.Step.NOTHING or not self._context.shards.owns(batch.metadata.labels):
            self._store.cache.drop(batch.metadata.name)
            return AT_ONCE
        is_overdue = self._context.termination.is_overdue(GatewayBatch.plural)
        if is_overdue and batch.metadata.deletion_timestamp and step is not lifecycle.Step.CLOSE:
            return await self._finalizing.give_up(batch)
        if batch.status.phase is None and await self._restoring.restore(batch):
            return AT_ONCE
        try:
            return await self._steps[step](batch)
        except Unfit as unfit:
            return await self._fail(batch, unfit)
        except (ObjectMissing, ContentDamaged, RecordsDamaged) as error:
            # without the input no line can be reported, nor without the results
            _log.error("bytes of a batch are lost", object=batch.metadata.name, error=str(error))
            fault = Problem("file_not_found", "The bytes of the batch are missing or damaged.")
            return await self._fail(batch, Unfit(Reason.INVALID_REQUEST, fault))

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`."""
        super().forget(name)
        self._holds.forget(name)
        self._restoring.forget(name)
        self._outages.forget(name)

    async def _show_wait(self, name: str, reason: Reason, text: str) -> None:
        newest = self._store.cache.get(name)
        if newest is not None and newest.status.phase not in TERMINAL_PHASES:
            await self._store.show_wait(newest, reason, text)

    def describe(self, batch: GatewayBatch) -> Mapping[str, str | None]:
        """Batch, account and request, for log lines."""
        return {
            "batch": name_to_id(batch.metadata.name),
            "account": batch.spec.request.account_name,
            "request_id": batch.metadata.annotations.get(REQUEST_ID_ANNOTATION),
        }

    async def end(self) -> None:
        """Shut down: begin nothing more, and store the results of calls in flight."""
        self.queue.is_draining = True
        for run in list(self._runs.values()):
            run.stop()
        self.slots.wake()
        await self.queue.drain(MOMENT_SECONDS)
        await self.queue.stop(lambda _: False)

    async def _run(self, batch: GatewayBatch) -> Next:
        """Run the remaining lines in a slot, or find out that there are none to run."""
        account, name = batch.spec.request.account_name, batch.metadata.name
        seconds = self._store.seconds_left(batch)
        is_over = lifecycle.is_unwanted(batch) or not seconds
        # a batch that runs no more lines only reads its results, as in finalizing
        slots = self.slots.endings if is_over else self.slots.runs
        if (
            not is_over
            and not slots.has_room(account)
            and await self._store.show_wait(batch, Reason.WAITING_FOR_SLOT, TURN)
        ):
            return AT_ONCE
        async with slots.take(account, name, None if is_over else seconds) as has_slot:
            # without a slot: it may be cancelled by now, or its window has ended
            return await self._run_lines(batch, is_over) if has_slot else AT_ONCE

    async def _run_lines(self, batch: GatewayBatch, is_over: bool) -> Next:
        name = batch.metadata.name
        try:
            segments = await self._inputs.find_segments(batch)
            if not is_over:
                # a batch that runs no more lines needs no hold, and waits for nothing
                await self._holds.ensure(batch)
        except NotYet:
            await self._store.show_wait(batch, Reason.WAITING_FOR_LEDGER, LEDGER)
            return after(PAUSE_SECONDS)
        run = self._runs[name] = Run(self.runner, batch, segments, partial(self._find_model, batch))
        try:
            run_end = await run.run()
        finally:
            del self._runs[name]
        newest = self._store.cache.get(name)
        if run_end is not None and newest is not None and lifecycle.is_running(newest):
            # else another owner has fixed its results: there is one list of them
            await self._finalizing.fix(newest, run_end)
        return AT_ONCE

    def _find_model(self, batch: GatewayBatch) -> Model:
        """Return the model that the batch was begun with. NotFound where it is gone."""
        service, model_id = batch.status.service or "", batch.status.model_id or ""
        found = self._catalog().find_model(service, ACTION, model_id)
        return found or self._moderators.find_model(model_id, None)

    async def _fail(self, batch: GatewayBatch, unfit: Unfit) -> Next:
        """End a batch whose bytes were lost while it ran: without Files, at no cost."""
        now, total = self._context.now(), batch.status.counts.total if batch.status.counts else 0
        failure = lifecycle.record_failure(batch, unfit.reason, unfit.problems, total, now)
        await self._finalizing.withdraw(batch)
        await self._store.fail(batch, unfit.reason, failure)
        return AT_ONCE

    async def _mark(self, batch: GatewayBatch) -> Next:
        """Record that the batch is being cancelled."""
        await self._store.commit(batch, lifecycle.record_cancelling(batch, self._context.now()))
        return AT_ONCE


def _refuse_restored(batch: GatewayBatch, now: datetime) -> Mapping[str, Any]:
    problem = Problem("submission_unknown", NOT_ARCHIVED)
    return lifecycle.record_failure(batch, Reason.SUBMISSION_UNKNOWN, [problem], 0, now)
