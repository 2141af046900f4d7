"""The step between a task's end and its closing: its callback is delivered, or given up (§11).

The terminal state is written before the first attempt, so that a GET from inside the
receiver's handler sees it. The state of the schedule is written after each attempt, so the next
process that works the task continues from there.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.callbacks.schedule import State
from gateway_core.observability.tracing import SpanKind
from gateway_core.tasks import delivery as rules
from gateway_core.tasks.lifecycle import is_closed, wants_redelivery
from gateway_core.tasks.rendering import render_callback
from gateway_operator.billing.reservations import Reservations
from gateway_operator.callbacks.client import CallbackClient, Message, Receiver
from gateway_operator.callbacks.signing import AwaitingSecret, NoKey
from gateway_operator.context import Context, Shards
from gateway_operator.reconciler import AT_ONCE, Next, WorkQueue, after
from gateway_operator.tasks.cache import TaskWriter
from gateway_operator.tasks.calls import TaskTraces
from gateway_operator.tasks.recording import Recording

SECRET_PAUSE, LONGEST_SECRET_PAUSE = 5.0, 60.0
"""Seconds between two looks for an account's secret: a tenth of the wait so far."""
DELETED_MESSAGE = "the task was deleted before its callback was delivered"

_log = structlog.get_logger(__name__)
_Attempt = tuple[int, int]
"""Redelivery and number of an attempt, which identify its outcome."""

REDELIVERY_SELECTOR = f"status.work={SETTLED},spec.redeliveries!=0"
"""Settled tasks whose `spec.redeliveries` was ever raised, which the feed of open tasks lacks."""


def read_wanted(obj: Object, shards: Shards) -> int | None:
    """Return the object's version if it is of these shards and asks for one more delivery.

    Also of a task that was settled once more and not closed, which the resync does not select.
    """
    if not shards.owns(obj["metadata"].get("labels")):
        return None
    task = GatewayTask.model_validate(obj)
    if is_closed(task) and not wants_redelivery(task):
        return None
    return int(obj["metadata"]["resourceVersion"])


@dataclass(eq=False)
class Delivery:
    """Delivers callbacks. Its memory only spares repetitions."""

    context: Context
    queue: WorkQueue
    writer: TaskWriter
    client: CallbackClient
    reservations: Reservations
    awaiting: AwaitingSecret
    traces: TaskTraces
    recording: Recording
    _settled: set[str] = field(default_factory=set, init=False)
    _unrecorded: dict[str, tuple[_Attempt, rules.Outcome]] = field(default_factory=dict, init=False)
    _waiting: dict[str, asyncio.Timeout] = field(default_factory=dict, init=False)
    _sending: set[str] = field(default_factory=set, init=False)

    def observe(self, name: str) -> None:
        """Note that `name` has changed: it stops waiting for the limiter, and is decided anew."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.reschedule(asyncio.get_running_loop().time())

    def has_begun(self, name: str) -> bool:
        """Return whether an attempt is in flight or unrecorded, which a successor would repeat."""
        return name in self._sending or name in self._unrecorded

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s delivery."""
        self._settled.discard(name)
        self._unrecorded.pop(name, None)
        self.awaiting.leave(name)

    async def deliver(self, task: GatewayTask) -> Next:
        """Make the attempt that is due."""
        name, now = task.metadata.name, self.context.now()
        # neither money nor the archive waits for a receiver
        self.recording.begin(task)
        if name not in self._settled and await self.reservations.settle(task.source):
            self._settled.add(name)
            self.context.failpoints.reach("after-settle")
        if wants_redelivery(task):
            await self.writer.commit(task, rules.record_new_series(task, now))
            return AT_ONCE
        unrecorded = self._unrecorded.get(name)
        if unrecorded is not None and unrecorded[0] == _attempt_of(task):
            return await self._record(task, unrecorded[1])
        end = rules.given_up_time(task)
        if end is not None and now >= end:
            return await self._give_up(task, DELETED_MESSAGE)
        due = rules.due_time(task)
        if due > now:
            return self._wait_until(min(due, end) if end else due)
        return await self._attempt(task)

    async def reopen(self, task: GatewayTask) -> Next:
        """Open a settled task again, because an admin has raised `spec.redeliveries`."""
        finalizers = rules.keep_finalizer(task)
        if finalizers is not None:
            # first, so that the object stays until the delivery is settled
            task = await self.writer.amend(task, {"metadata": {"finalizers": finalizers}})
        await self.writer.commit(task, rules.record_new_series(task, self.context.now()))
        return AT_ONCE

    async def _attempt(self, task: GatewayTask) -> Next:
        name, request = task.metadata.name, task.spec.request
        url, account = request.callback_url or "", request.account_name
        body = render_callback(name_to_id(name), task.source["status"])
        message = Message(account, url, rules.callback_of(task).id, body)
        try:
            outcome = await self._send(task, message)
        except NoKey as problem:
            return await self._wait_for_key(task, str(problem))
        if outcome is None:
            return AT_ONCE
        self.context.failpoints.reach("after-callback")
        return await self._record(task, outcome)

    async def _send(self, task: GatewayTask, message: Message) -> rules.Outcome | None:
        """Return the outcome of an attempt; None where the task changed before it was made.

        Raises NoKey.
        """
        name = task.metadata.name
        # a task without a key takes no place in the limiter
        await self.client.check_keys(message.account)
        self.awaiting.release(message.account)
        async with AsyncExitStack() as stack:
            try:
                async with self._limit_wait(task) as waiting:
                    self._waiting[name] = waiting
                    turn = self.client.wait_turn(message.account, message.url)
                    receiver = await stack.enter_async_context(turn)
            except TimeoutError:
                return None
            finally:
                self._waiting.pop(name, None)
            # it may have waited for hours: an admin, or another owner, may have changed it since
            if self.writer.cache.version(name) != int(task.metadata.resource_version):
                return None
            if self.queue.is_draining:
                return None
            self._sending.add(name)
            try:
                self.context.failpoints.reach("before-callback")
                outcome = await self._send_traced(task, message, receiver)
                # before the write of it: if that does not land, the receiver is not called again
                self._unrecorded[name] = _attempt_of(task), outcome
                return outcome
            finally:
                self._sending.discard(name)

    async def _send_traced(
        self, task: GatewayTask, message: Message, receiver: Receiver
    ) -> rules.Outcome:
        began = time.perf_counter()
        with self.traces.begin(task, "callback attempt", kind=SpanKind.CLIENT) as span:
            outcome = await self.client.send(message, receiver)
            span.set_attributes({"gateway.attempt": rules.callback_of(task).attempts + 1})
            if outcome.status is not None:
                span.set_attributes({"http.response.status_code": outcome.status})
        self.context.metrics.attempt_duration.observe(time.perf_counter() - began)
        return outcome

    def _limit_wait(self, task: GatewayTask) -> asyncio.Timeout:
        """Return the time that the task may wait for the limiter: until it is given up."""
        end = rules.given_up_time(task)
        left = None if end is None else (end - self.context.now()).total_seconds()
        return asyncio.timeout(left)

    async def _record(self, task: GatewayTask, outcome: rules.Outcome) -> Next:
        """Write the outcome of an attempt; kept in memory until that is done."""
        context = self.context
        jitter = random.uniform(-1, 1)  # noqa: S311 - spreads attempts, hides nothing
        change = rules.record_outcome(task, outcome, self.client.schedule, jitter)
        await self.writer.commit(task, change)
        self._unrecorded.pop(task.metadata.name, None)
        context.failpoints.reach("after-callback-record")
        state = change["callback"]["state"]
        context.metrics.attempts.labels(state).inc()
        if state == State.DELIVERED:
            ended = parse_time(task.status.completion_time)
            context.metrics.delivery.observe(max(0.0, (outcome.time - ended).total_seconds()))
        elif state == State.UNDELIVERED:
            self._report_end(task, outcome.answer)
        return AT_ONCE

    async def _wait_for_key(self, task: GatewayTask, problem: str) -> Next:
        """Delay the attempt until the account has a secret; an event reports it."""
        now, due = self.context.now(), rules.due_time(task)
        await self.context.events.report_missing_key(task, problem)
        if now >= due + rules.SECRET_PATIENCE:
            return await self._give_up(task, problem)
        waiting = rules.record_obstacle(task, problem, now)
        if waiting is not None:
            await self.writer.commit(task, waiting)
        again = due + rules.SECRET_PATIENCE
        if self.awaiting.join(task.metadata.name, task.spec.request.account_name):
            waited = (now - due).total_seconds()
            pause = min(LONGEST_SECRET_PAUSE, max(SECRET_PAUSE, waited / 10))
            again = min(again, now + timedelta(seconds=pause))
        end = rules.given_up_time(task)
        return self._wait_until(min(again, end) if end else again)

    async def _give_up(self, task: GatewayTask, problem: str) -> Next:
        await self.writer.commit(task, rules.record_surrender(task, problem, self.context.now()))
        self.context.metrics.attempts.labels(State.UNDELIVERED).inc()
        self._report_end(task, problem)
        return AT_ONCE

    def _report_end(self, task: GatewayTask, problem: str) -> None:
        _log.warning("callback given up", object=task.metadata.name, problem=problem)
        self.context.events.warn(task.source, reason="CallbackGivenUp", message=problem)

    def _wait_until(self, moment: datetime) -> Next:
        return after((moment - self.context.now()).total_seconds())


def _attempt_of(task: GatewayTask) -> _Attempt:
    callback = rules.callback_of(task)
    return callback.redeliveries, callback.attempts
