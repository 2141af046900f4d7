"""The controller of tasks: which step is due, what events and notices start, and the shutdown."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from gateway_core.api.ids import REQUEST_ID_ANNOTATION, TASK_FINALIZER, name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.kube.errors import KubernetesError
from gateway_core.kube.informer import Cache
from gateway_core.observability.tracing import NO_SPAN, Span
from gateway_core.providers.notices import Notice
from gateway_core.tasks.lifecycle import (
    Step,
    deadline,
    is_pending,
    is_terminal,
    next_step,
    refuse_restored,
)
from gateway_operator.accounts.credentials import Credentials
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.reservations import Reservations
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.signing import AwaitingSecret
from gateway_operator.context import Context
from gateway_operator.outages import OUTAGES, describe_outage
from gateway_operator.reconciler import AT_ONCE, Next, Reconciler, Superseded, after
from gateway_operator.tasks.adoption import Adoption
from gateway_operator.tasks.cache import TaskCache, TaskWriter
from gateway_operator.tasks.calls import Inputs, Outputs, ProviderCalls, find_context
from gateway_operator.tasks.delivery import Delivery
from gateway_operator.tasks.ending import Ending
from gateway_operator.tasks.holds import Holds
from gateway_operator.tasks.polling import Polling
from gateway_operator.tasks.recording import Recording
from gateway_operator.tasks.restoring import NOT_ARCHIVED, Restoring
from gateway_operator.tasks.submission import Submission
from gateway_operator.tasks.waits import Waits

MOST_ADOPTIONS = 16
"""Concurrent adoptions. Calls to the Kubernetes API wait for each other in their order, so a burst
of new tasks would delay the ends of older ones: what has begun is completed first."""

MOMENT_SECONDS = 3.0
CALL_SECONDS = 17.0
"""Together below the 30 s between SIGTERM and SIGKILL that Kubernetes grants."""

_WAITING = frozenset({Step.SUBMIT, Step.POLL, Step.DELIVER})
_BEFORE_DEADLINE = frozenset({Step.ADOPT, Step.SUBMIT, Step.POLL})


class TaskController(Reconciler[GatewayTask]):
    """Takes each task through its steps, from adoption to the removal of its finalizer."""

    def __init__(
        self,
        context: Context,
        *,
        reservations: Reservations,
        credentials: Credentials,
        calls: ProviderCalls,
        inputs: Inputs,
        outputs: Outputs,
        aggregator: UsageAggregator,
        callbacks: CallbackClient,
    ) -> None:
        super().__init__(context.metrics.work_failures.inc)
        self._context = context
        self._calls = calls
        self.cache = TaskCache()
        self.writer = writer = TaskWriter(context, self.cache)
        awaiting = AwaitingSecret(credentials.accounts, self.queue.add)
        self._holds = holds = Holds(context, writer, reservations, credentials)
        self._waits = waits = Waits(context, writer)
        self._submission = Submission(context, self.queue, writer, calls, inputs, holds, waits)
        self._polling = Polling(context, self.queue, writer, calls, inputs, holds, outputs, waits)
        self.recording = recording = Recording(
            context,
            self.cache,
            aggregator,
            reservations.counters,
            context.metrics.work_failures.inc,
        )
        self._ending = Ending(context, writer, calls, self._submission, reservations, recording)
        self._delivery = Delivery(
            context, self.queue, writer, callbacks, reservations, awaiting, calls.traces, recording
        )
        self._adoption = Adoption(context, writer, holds, self._submission, inputs, calls)
        self._restoring = Restoring(
            context,
            self.cache,
            writer,
            reservations,
            TASK_FINALIZER,
            holds.is_admitted,
            lambda task, now: refuse_restored(task, NOT_ARCHIVED, now),
        )
        self._adoptions = asyncio.Semaphore(MOST_ADOPTIONS)
        self._steps: dict[Step, Callable[[GatewayTask], Awaitable[Next]]] = {
            Step.UNMARK: self._adoption.unmark,
            Step.ADOPT: self._adopt,
            Step.SUBMIT: self._submission.submit,
            Step.POLL: self._polling.poll,
            Step.STOP: self._ending.stop,
            Step.EXPIRE: self._ending.expire,
            Step.DELIVER: self._delivery.deliver,
            Step.REOPEN: self._delivery.reopen,
            Step.CLOSE: self._ending.close,
        }

    def observe(self, kind: str | None, obj: Object) -> None:
        """Handle a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED" and not self.cache.leave(obj):
            self.forget(name)
            if self._submission.job_of(name) is not None:
                self.queue.add(name)
            return
        if kind == "DELETED" or self.cache.upsert(obj):
            if kind == "ADDED" and "upstream" not in (obj.get("status") or {}):
                self._submission.note_created(name)
            self._delivery.observe(name)
            self.queue.add(name)

    def look_again(self) -> None:
        """Reconcile all tasks."""
        for name in self.cache.names():
            self.queue.add(name)

    def follow_redeliveries(self, wanted: Cache[int]) -> None:
        """Reconcile settled tasks whose callback an admin wants once more, by their version."""

        def reconcile(name: str) -> None:
            version = wanted.get(name)
            if version is not None and self.cache.expect(name, version):
                self.queue.add(name)

        wanted.subscribe(reconcile)

    def take_notice(self, notice: Notice) -> None:
        """Poll a job soon, since its provider says that it has changed.

        There is nothing to poll of a task that has ended, is another replica's or is unknown yet.
        """
        task = self.cache.get(notice.name)
        if task is None or is_terminal(task) or task.metadata.uid != notice.uid:
            self._context.metrics.notices.labels("useless").inc()
            return
        taken = self._polling.hasten(notice.name)
        self._context.metrics.notices.labels("taken" if taken else "held_up").inc()

    async def find(self, name: str) -> GatewayTask | None:
        """Return the newest task, read anew where the watch does not show it any more."""
        if self.cache.is_unread(name):
            # it has ended or gone: nothing that was known of its steps is of use any more
            self.forget(name)
            await self.writer.refresh(name)
        task = self.cache.get(name)
        stray = self._submission.take_stray(name, task)
        if stray is not None:
            await self._ending.stop_stray(stray)
            return await self.find(name)
        return task

    async def step(self, task: GatewayTask) -> Next:
        """Take the step that is due, if any."""
        step = next_step(task, self._context.now())
        if step is Step.NOTHING or not self._is_own(task):
            self.cache.drop(task.metadata.name)
            return AT_ONCE
        try:
            following = await self._take(step, task)
        except OUTAGES as error:
            await self._show_wait(task, error)
            raise
        if following.seconds is not None and step in _BEFORE_DEADLINE:
            left = (deadline(task) - self._context.now()).total_seconds()
            return after(min(following.seconds, max(0.0, left)))
        return following

    async def _take(self, step: Step, task: GatewayTask) -> Next:
        is_blank = is_pending(task) and task.status.upstream is None
        if is_blank and await self._restoring.restore(task):
            return AT_ONCE
        with self._begin_span(task, step):
            return await self._steps[step](task)

    def forget(self, name: str) -> None:
        """Drop all that is kept in memory of `name`, except a job that is not recorded yet."""
        super().forget(name)
        for part in (
            self._holds,
            self._submission,
            self._polling,
            self._waits,
            self._delivery,
            self.recording,
            self._restoring,
            self._ending,
        ):
            part.forget(name)

    def has_begun(self, name: str) -> bool:
        """Return whether a successor could not find out the outcome of what is in flight."""
        return self._submission.has_begun(name) or self._delivery.has_begun(name)

    def describe(self, task: GatewayTask) -> Mapping[str, str | None]:
        """Task, account, request and trace, for log lines."""
        context = find_context(task)
        return {
            "task": name_to_id(task.metadata.name),
            "account": task.spec.request.account_name,
            "request_id": task.metadata.annotations.get(REQUEST_ID_ANNOTATION),
            "trace_id": None if context is None else context.trace_id,
        }

    async def end(self) -> None:
        """Shut down: complete calls whose outcome a successor could not find out.

        Calls that may start a job and attempts at callbacks get as long as they mostly need,
        everything else a moment: it is cancelled then, and repeated elsewhere without harm.
        """
        await self._context.termination.finish(self._is_stopping)
        await self.queue.drain(MOMENT_SECONDS)
        await self.recording.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self.queue.stop(self.has_begun)
        await self.queue.drain(CALL_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._submission.withdraw()

    async def _show_wait(self, task: GatewayTask, error: Exception) -> None:
        """Show that the task waits for the object store or Redis, if that can be written."""
        newest = self.cache.get(task.metadata.name) or task
        with suppress(Superseded, KubernetesError):
            await self._submission.show_wait(newest, *describe_outage(error))

    def _is_stopping(self) -> bool:
        """Return whether jobs of deleted tasks are still to be stopped."""
        now = self._context.now()
        tasks = map(GatewayTask.load, self.cache.objects())
        return any(next_step(task, now) is Step.STOP for task in tasks)

    async def _adopt(self, task: GatewayTask) -> Next:
        """Adopt a task in its turn; it may have changed while it waited."""
        name = task.metadata.name
        async with self._adoptions:
            if not self.cache.is_newest(task) or self.cache.is_unread(name):
                return AT_ONCE
            return await self._adoption.adopt(task)

    def _begin_span(self, task: GatewayTask, step: Step) -> Span:
        """Return the span of a step; steps that mostly wait begin their own for what they do."""
        return NO_SPAN if step in _WAITING else self._calls.traces.begin(task, step.value)

    def _is_own(self, task: GatewayTask) -> bool:
        """Return whether this replica works the task.

        One whose label changed goes to the owner of that shard. A task that was settled here is
        closed here, since it has left every replica's watch, and a job's id is recorded by the
        process that received it.
        """
        if self._context.shards.owns(task.metadata.labels) or task.status.work == SETTLED:
            return True
        return self._submission.job_of(task.metadata.name) is not None
