"""Carries each task through its steps; what kopf's feed and the work queue call."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars

from gateway_core.api.ids import REQUEST_ID_ANNOTATION, name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, TERMINAL_PHASES, GatewayTask
from gateway_core.observability.tracing import NO_SPAN, Span
from gateway_core.providers.notices import Notice
from gateway_core.tasks.lifecycle import Step, next_step
from gateway_operator.tasks.adoption import Intake
from gateway_operator.tasks.calls import find_context
from gateway_operator.tasks.delivery import Delivery
from gateway_operator.tasks.ending import Ending
from gateway_operator.tasks.holds import Holds
from gateway_operator.tasks.limits import Limits
from gateway_operator.tasks.polling import Polling
from gateway_operator.tasks.statuswriter import Superseded
from gateway_operator.tasks.submission import Submission
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import Draining

MOST_CONFLICTS = 3
"""Writes that do not land one after the other before the work queue's back-off takes over."""

MOST_TAKEN_IN = 16
"""Tasks taken in at one time. Calls to the Kubernetes API wait for each other in their order, so a
burst of new tasks would keep the ends of older ones waiting: what has begun is brought to its end
first."""

MOMENT_SECONDS = 3.0
CALL_SECONDS = 17.0
"""Together below the 30 s between SIGTERM and SIGKILL that Kubernetes grants."""

_WAITING = frozenset({Step.SUBMIT, Step.POLL, Step.DELIVER})

_log = structlog.get_logger(__name__)


class TaskController:
    """Level-triggered: looks at the newest object, does what is due, again until it must wait."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._holds = Holds(tools)
        limits = Limits(tools)
        self._submission = Submission(tools, self._holds, limits)
        self._polling = Polling(tools, self._holds)
        self._ending = Ending(tools, self._submission)
        self._delivery = Delivery(tools)
        self._intake = Intake(tools, self._holds, limits, self._submission)
        self._places = asyncio.Semaphore(MOST_TAKEN_IN)
        self._steps: dict[Step, Callable[[Object, GatewayTask], Awaitable[bool]]] = {
            Step.UNMARK: self._intake.unmark,
            Step.TAKE_IN: self._take_in,
            Step.SUBMIT: self._submission.submit,
            Step.POLL: self._polling.poll,
            Step.STOP: self._ending.stop,
            Step.EXPIRE: self._ending.expire,
            Step.DELIVER: self._delivery.deliver,
            Step.REOPEN: self._delivery.reopen,
            Step.CLOSE: self._ending.close,
        }

    def observe(self, kind: str | None, obj: Object) -> None:
        """Takes in a watch event: `kind` is None for the initial list, or as on the wire."""
        name = obj["metadata"]["name"]
        if kind == "DELETED" and not self._tools.live.leave(obj):
            self._forget(name)
            if self._submission.job_of(name) is not None:
                self._tools.queue.add(name)
            return
        if kind == "DELETED" or self._tools.live.upsert(obj):
            if kind == "ADDED" and "upstream" not in (obj.get("status") or {}):
                self._submission.note_created(name)
            self._delivery.observe(name)
            self._tools.queue.add(name)

    def take_notice(self, notice: Notice) -> None:
        """Has the job of a task asked after soon, since its provider says that it changed.

        Of a task that has ended, is another's or is not known yet there is nothing to ask.
        """
        obj = self._tools.live.get(notice.name)
        ended = obj is not None and (obj.get("status") or {}).get("phase") in TERMINAL_PHASES
        if obj is None or ended or obj["metadata"]["uid"] != notice.uid:
            self._tools.metrics.count_notice("useless")
            return
        taken = self._polling.hasten(notice.name)
        self._tools.metrics.count_notice("taken" if taken else "held_up")

    async def reconcile(self, name: str) -> None:
        """Does what is due for the task, if anything. Raises KubernetesUnavailable and the like."""
        conflicts = 0
        while True:
            if self._tools.live.is_unread(name):
                # it has ended or gone: nothing that was known of its steps is of use any more
                self._forget(name)
                await self._tools.journal.refresh(name)
            obj = self._tools.live.get(name)
            task = None if obj is None else GatewayTask.model_validate(obj)
            stray = self._submission.take_stray(name, task)
            if stray is not None:
                await self._ending.stop_stray(stray)
                continue
            if obj is None or task is None:
                self._forget(name)
                return
            if not self._is_own(task):
                self._tools.live.drop(name)
                continue
            if self._tools.queue.is_draining and not self._has_begun(name):
                return
            step = next_step(task, self._tools.now())
            if step is Step.NOTHING:
                self._tools.live.drop(name)
                continue
            self._name_in_logs(task)
            try:
                with self._begin_span(task, step):
                    goes_on = await self._steps[step](obj, task)
            except Draining:
                return
            except Superseded as conflict:
                _log.debug("superseded", object=name, step=step.value, conflict=str(conflict))
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                continue
            conflicts = 0
            if not goes_on:
                return

    async def end(self) -> None:
        """Brings to an end what a successor could not tell the outcome of; takes nothing more.

        Calls that may start a job and attempts at callbacks get as long as they mostly need,
        everything else a moment: it is cut short then, and begun anew elsewhere without harm.
        """
        queue = self._tools.queue
        await queue.drain(MOMENT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await queue.stop(self._has_begun)
        await queue.drain(CALL_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._submission.withdraw()

    async def _take_in(self, obj: Object, task: GatewayTask) -> bool:
        """Takes a task in, once it is its turn; while it waited it may have changed."""
        async with self._places:
            newest = self._tools.live.get(task.metadata.name)
            if newest is not obj or self._tools.live.is_unread(task.metadata.name):
                return True
            return await self._intake.take_in(obj, task)

    def _begin_span(self, task: GatewayTask, step: Step) -> Span:
        """The span of a step; those that mostly wait have theirs for what they do."""
        if step in _WAITING:
            return NO_SPAN
        return self._tools.traces.begin(task, step.value)

    def _name_in_logs(self, task: GatewayTask) -> None:
        """Has whatever is logged from here on say which task it is about."""
        clear_contextvars()  # what stands there may be of the task that this one was added by
        names = {
            "task": name_to_id(task.metadata.name),
            "account": task.spec.request.account_name,
            "request_id": task.metadata.annotations.get(REQUEST_ID_ANNOTATION),
        }
        context = find_context(task)
        if context is not None:
            names["trace_id"] = context.trace_id
        bind_contextvars(**{name: value for name, value in names.items() if value})

    def _has_begun(self, name: str) -> bool:
        """Whether a successor could not tell what has become of what is under way."""
        return self._submission.has_begun(name) or self._delivery.has_begun(name)

    def _is_own(self, task: GatewayTask) -> bool:
        """Whether the task is this replica's to work.

        One that got its label, or another one, is handed to that shard's owner. What was settled
        here is closed here, since it has left every replica's watch, and a job's id is recorded by
        the one who has received it.
        """
        if self._tools.shards.owns(task.metadata.labels) or task.status.work == SETTLED:
            return True
        return self._submission.job_of(task.metadata.name) is not None

    def _forget(self, name: str) -> None:
        self._tools.queue.forget(name)
        self._holds.forget(name)
        self._submission.forget(name)
        self._polling.forget(name)
        self._delivery.forget(name)
        self._ending.forget(name)
