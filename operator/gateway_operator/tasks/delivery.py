"""The step between a task's end and its closing: its callback is delivered, or given up (§11).

The terminal state is in the record before the first attempt, so that a GET from inside the
receiver's handler sees it. The state of the schedule is written after each attempt: whoever works
the task next, in this process or another, goes on from there.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import structlog

from gateway_core.api.ids import name_to_id
from gateway_core.api.resource import Object
from gateway_core.api.task import SETTLED, GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.callbacks.schedule import State
from gateway_core.kube.informer import Cache
from gateway_core.observability.tracing import SpanKind
from gateway_core.tasks.delivery import (
    SECRET_PATIENCE,
    Outcome,
    callback_of,
    due_time,
    given_up_time,
    keep_finalizer,
    record_new_series,
    record_obstacle,
    record_outcome,
    record_surrender,
)
from gateway_core.tasks.lifecycle import is_closed, wants_redelivery
from gateway_core.tasks.rendering import render_callback
from gateway_operator.billing.settlement import settle_hold
from gateway_operator.callbacks.client import Message
from gateway_operator.callbacks.limiter import Lane
from gateway_operator.callbacks.signing import AwaitingSecret, NoKey
from gateway_operator.shards import Shards
from gateway_operator.tasks.cache import TaskCache
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import WorkQueue

SECRET_PAUSE, LONGEST_SECRET_PAUSE = 5.0, 60.0
"""Seconds between two looks for an account's secret: a tenth of the wait so far."""
DELETED_MESSAGE = "the task was deleted before its callback was delivered"

_log = structlog.get_logger(__name__)
_Attempt = tuple[int, int]
"""Redelivery and number of an attempt: what makes an outcome the outcome of that one."""


class Delivery:
    """Delivers callbacks. What is in memory only spares a repetition."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._settled: set[str] = set()
        self._unrecorded: dict[str, tuple[_Attempt, Outcome]] = {}
        self._waiting: dict[str, asyncio.Timeout] = {}
        self._sending: set[str] = set()
        self._keyless = AwaitingSecret(tools.accounts, tools.queue.add)

    def observe(self, name: str) -> None:
        """Takes in that `name` has changed: if it waits for its turn, it does so no longer."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.reschedule(asyncio.get_running_loop().time())

    def has_begun(self, name: str) -> bool:
        """Whether an attempt is under way or not recorded, which a successor would repeat."""
        return name in self._sending or name in self._unrecorded

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s delivery."""
        self._settled.discard(name)
        self._unrecorded.pop(name, None)
        self._keyless.leave(name)

    async def deliver(self, obj: Object, task: GatewayTask) -> bool:
        """Makes the attempt that is due. Whether the task can go on at once."""
        tools, name, now = self._tools, task.metadata.name, self._tools.now()
        if name not in self._settled and await settle_hold(tools, obj):
            # money does not wait for a receiver
            self._settled.add(name)
        if wants_redelivery(task):
            await tools.journal.commit(obj, record_new_series(task, now))
            return True
        unrecorded = self._unrecorded.get(name)
        if unrecorded is not None and unrecorded[0] == _attempt_of(task):
            await self._record(obj, task, unrecorded[1])
            return True
        end = given_up_time(task)
        if end is not None and now >= end:
            await self._surrender(obj, task, DELETED_MESSAGE)
            return True
        due = due_time(task)
        if due > now:
            self._look_again(name, min(due, end) if end else due)
            return False
        return await self._attempt(obj, task)

    async def reopen(self, obj: Object, task: GatewayTask) -> bool:
        """Opens a settled task again, because an admin has raised `spec.redeliveries`."""
        tools, finalizers = self._tools, keep_finalizer(task)
        if finalizers is not None:
            # first, so that the object stays until the delivery is settled
            obj = await tools.journal.amend(obj, {"metadata": {"finalizers": finalizers}})
        await tools.journal.commit(obj, record_new_series(task, tools.now()))
        return True

    async def _attempt(self, obj: Object, task: GatewayTask) -> bool:
        tools, name, request = self._tools, task.metadata.name, task.spec.request
        url, account = request.callback_url or "", request.account_name
        message = Message(
            account, url, callback_of(task).id, render_callback(name_to_id(name), obj["status"])
        )
        try:
            outcome = await self._send(task, message)
        except NoKey as problem:
            return await self._wait_for_key(obj, task, str(problem))
        if outcome is None:
            return True
        tools.failpoints.reach("after-callback")
        await self._record(obj, task, outcome)
        return True

    async def _send(self, task: GatewayTask, message: Message) -> Outcome | None:
        """What the attempt came to; None where none is made of the task as it was. NoKey."""
        tools, name = self._tools, task.metadata.name
        # nobody stands in a lane for want of a key
        await tools.courier.check_keys(message.account)
        self._keyless.release(message.account)
        async with AsyncExitStack() as turn:
            try:
                async with self._limit_wait(task) as waiting:
                    self._waiting[name] = waiting
                    way = tools.courier.wait_turn(message.account, message.url)
                    lane = await turn.enter_async_context(way)
            except TimeoutError:
                return None
            finally:
                self._waiting.pop(name, None)
            if tools.live.version(name) != int(task.metadata.resource_version):
                return None
            if tools.queue.is_draining:
                return None
            self._sending.add(name)
            try:
                tools.failpoints.reach("before-callback")
                outcome = await self._send_traced(task, message, lane)
                self._unrecorded[name] = _attempt_of(task), outcome
                return outcome
            finally:
                self._sending.discard(name)

    async def _send_traced(self, task: GatewayTask, message: Message, lane: Lane) -> Outcome:
        tools, began = self._tools, time.perf_counter()
        with tools.traces.begin(task, "callback attempt", kind=SpanKind.CLIENT) as span:
            outcome = await tools.courier.send(message, lane)
            span.set_attributes({"gateway.attempt": callback_of(task).attempts + 1})
            if outcome.status is not None:
                span.set_attributes({"http.response.status_code": outcome.status})
        tools.metrics.attempt_duration.observe(time.perf_counter() - began)
        return outcome

    def _limit_wait(self, task: GatewayTask) -> asyncio.Timeout:
        """How long the task may stand in a lane: until it is given up."""
        end = given_up_time(task)
        left = None if end is None else (end - self._tools.now()).total_seconds()
        return asyncio.timeout(left)

    async def _record(self, obj: Object, task: GatewayTask, outcome: Outcome) -> None:
        """Writes what an attempt came to; kept in memory until that is done."""
        tools = self._tools
        jitter = random.uniform(-1, 1)  # noqa: S311 - spreads attempts, hides nothing
        change = record_outcome(task, outcome, tools.callback_schedule, jitter)
        await tools.journal.commit(obj, change)
        self._unrecorded.pop(task.metadata.name, None)
        tools.failpoints.reach("after-callback-record")
        state = change["callback"]["state"]
        tools.metrics.count_attempt(state)
        if state == State.DELIVERED:
            ended = parse_time(task.status.completion_time)
            tools.metrics.delivery.observe(max(0.0, (outcome.time - ended).total_seconds()))
        elif state == State.UNDELIVERED:
            _log.warning("callback undelivered", object=task.metadata.name, answer=outcome.answer)

    async def _wait_for_key(self, obj: Object, task: GatewayTask, problem: str) -> bool:
        """Has the attempt wait until the account has a secret, and tells an admin."""
        tools, now = self._tools, self._tools.now()
        await tools.alarms.report_missing_key(task, problem)
        if now >= due_time(task) + SECRET_PATIENCE:
            await self._surrender(obj, task, problem)
            return True
        waiting = record_obstacle(task, problem, now)
        if waiting is not None:
            await tools.journal.commit(obj, waiting)
        again = due_time(task) + SECRET_PATIENCE
        if self._keyless.join(task.metadata.name, task.spec.request.account_name):
            waited = (now - due_time(task)).total_seconds()
            pause = min(LONGEST_SECRET_PAUSE, max(SECRET_PAUSE, waited / 10))
            again = min(again, now + timedelta(seconds=pause))
        end = given_up_time(task)
        self._look_again(task.metadata.name, min(again, end) if end else again)
        return False

    async def _surrender(self, obj: Object, task: GatewayTask, problem: str) -> None:
        tools = self._tools
        await tools.journal.commit(obj, record_surrender(task, problem, tools.now()))
        tools.metrics.count_attempt(State.UNDELIVERED)
        _log.warning("callback given up", object=task.metadata.name, problem=problem)

    def _look_again(self, name: str, moment: datetime) -> None:
        self._tools.queue.add_after(name, (moment - self._tools.now()).total_seconds())


def _attempt_of(task: GatewayTask) -> _Attempt:
    callback = callback_of(task)
    return callback.redeliveries, callback.attempts


SELECTOR = f"status.work={SETTLED},spec.redeliveries!=0"


def project_wanted(obj: Object, shards: Shards) -> int | None:
    """The object's version if it is of these shards and there is something to do for it."""
    if not shards.owns(obj["metadata"].get("labels")):
        return None
    task = GatewayTask.model_validate(obj)
    if is_closed(task) and not wants_redelivery(task):
        return None
    return int(obj["metadata"]["resourceVersion"])


class Redeliveries:
    """Puts tasks on the queue as they come into the table."""

    def __init__(self, wanted: Cache[int], live: TaskCache, queue: WorkQueue) -> None:
        self._wanted = wanted
        self._live = live
        self._queue = queue
        wanted.subscribe(self._notice)

    def _notice(self, name: str) -> None:
        version = self._wanted.get(name)
        if version is not None and self._live.expect(name, version):
            self._queue.add(name)
