"""The third step: the job is asked after, without a write, until it has ended.

The interval grows with the task's age between the bounds the provider declares; an answer of
nonsense counts as none, and the deadline ends what the provider never ends. A provider's notice
makes a poll due at once, but the first ones alone: many would be a flood.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from gateway_core.api.conditions import Reason
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import parse_time
from gateway_core.billing.prices import Usage, bound_task, charge, select_price
from gateway_core.observability.tracing import NO_SPAN, Span, SpanKind
from gateway_core.providers.upstream import (
    JobReport,
    JobState,
    OutputRejected,
    Upstream,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
)
from gateway_core.storage.objects import ObjectMissing
from gateway_core.tasks.archive import InputDamaged
from gateway_core.tasks.lifecycle import Phase, deadline, record_completion, reserved_micros
from gateway_operator.tasks.calls import name_outcome
from gateway_operator.tasks.holds import Holds
from gateway_operator.tasks.inputs import read_stored_values
from gateway_operator.tasks.tools import Tools

AGE_SHARE = 0.1
LONGEST_PAUSE = 30.0
LOST_ANSWERS = 3
LOST_SECONDS = 60.0
"""A provider's front that answers 404 while it is deployed has not lost what runs behind it."""

MOST_COPY_ATTEMPTS = 6
PROVIDER_PAUSE = 3.0
FIRST_NOTICE_PAUSE = 1.0
LONGEST_NOTICE_PAUSE = 10.0


@dataclass(slots=True)
class _Watch:
    """When to ask next, and what went wrong of late; lost at a restart without harm.

    `running_at` is when the last poll was sent that still said running, `ended_at` when the end was
    first seen. `span` is of all its polls together.
    `told` is whether the provider has told of the job since it was last asked. No notice makes a
    poll due before `hastened_from`.
    """

    due: float
    told: bool = False
    hastened: int = 0
    hastened_from: float = float("-inf")
    failures: int = 0
    gone: int = 0
    gone_since: float = 0.0
    copy_failures: int = 0
    running_at: datetime | None = None
    ended_at: datetime | None = None
    span: Span = NO_SPAN

    def end_span(self) -> None:
        """Ends the span, if it has begun: nothing more is asked."""
        self.span.end()
        self.span = NO_SPAN


class Polling:
    """Asks after jobs and takes in what they made."""

    def __init__(self, tools: Tools, holds: Holds) -> None:
        self._tools = tools
        self._holds = holds
        self._watches: dict[str, _Watch] = {}

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s polls."""
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.end_span()

    def hasten(self, name: str) -> bool:
        """Makes the poll of a live task due, as soon as notices may; whether that is news.

        A notice may come before the job's id is recorded, and while a poll is under way that was
        sent before the job ended: it counts for the next one.
        """
        watch = self._watches.setdefault(name, _Watch(due=float("inf")))
        if watch.told:
            return False
        watch.told = True
        watch.due = min(watch.due, max(time.monotonic(), watch.hastened_from))
        self._tools.queue.add_after(name, watch.due - time.monotonic())
        return True

    async def poll(self, obj: Object, task: GatewayTask) -> bool:
        """Asks if it is time to. Whether the task can go on at once."""
        tools, name, job = self._tools, task.metadata.name, task.status.upstream
        assert job is not None
        assert job.job_id is not None
        upstream = await tools.providers.find(job.provider_name)
        if upstream is None:
            tools.look_again(task, PROVIDER_PAUSE)
            return False
        watch = self._watches.get(name)
        if watch is None:
            first = upstream.poll_interval[0] * random.uniform(0.5, 1.0)  # noqa: S311
            watch = self._watches[name] = _Watch(due=time.monotonic() + first)
        if watch.due > time.monotonic():
            self._plan(task, watch)
            return False
        tools.metrics.poll_delay.observe(time.monotonic() - watch.due)
        if watch.told:
            watch.told = False
            pause = min(LONGEST_NOTICE_PAUSE, FIRST_NOTICE_PAUSE * 2.0 ** min(watch.hastened, 8))
            watch.hastened += 1
            watch.hastened_from = time.monotonic() + pause
        await self._holds.make_up(task)
        if watch.span is NO_SPAN:
            watch.span = tools.traces.begin(task, "poll", kind=SpanKind.CLIENT)
        asked_at = tools.now()
        try:
            with tools.calls.time(job.provider_name, "poll"):
                report = await upstream.poll(job.job_id)
        except UpstreamError as error:
            watch.span.add_event("poll", {"outcome": name_outcome(error)})
            return await self._handle(obj, task, upstream, watch, error)
        watch.span.add_event("poll", {"outcome": report.state.value})
        watch.failures = watch.gone = 0
        if report.state is JobState.RUNNING:
            watch.running_at = asked_at
            pause = max(self._interval(task, upstream), report.retry_after or 0.0)
            self._postpone(task, watch, pause, least=report.retry_after)
            return False
        watch.end_span()
        watch.ended_at = watch.ended_at or tools.now()
        if report.state is JobState.SUCCEEDED:
            return await self._take_outputs(obj, task, upstream, watch, report)
        message = report.message or "The provider could not generate the output."
        if report.state is JobState.CANCELLED:
            message = report.message or "The provider cancelled the job."
        await tools.fail(obj, task, Reason.GENERATION_FAILED, message)
        self._note_lag(task, watch)
        return True

    async def _take_outputs(
        self, obj: Object, task: GatewayTask, upstream: Upstream, watch: _Watch, report: JobReport
    ) -> bool:
        tools, now = self._tools, self._tools.now()
        tools.failpoints.reach("before-outputs")
        try:
            left = (deadline(task) - now).total_seconds()
            async with asyncio.timeout(max(1.0, left)):
                provider = task.status.upstream.provider_name if task.status.upstream else ""
                with tools.calls.watch(task, provider, "copy"):
                    videos = await tools.outputs.copy(
                        upstream, task.metadata.uid, report.outputs, now
                    )
        except OutputRejected as error:
            await tools.fail(obj, task, Reason.OUTPUT_UNAVAILABLE, error.message)
            self._note_lag(task, watch)
            return True
        except TimeoutError:
            return True  # the deadline is over, which is the next step's to deal with
        except UpstreamError as error:
            watch.copy_failures += 1
            if watch.copy_failures >= MOST_COPY_ATTEMPTS:
                message = "The output could not be fetched from the provider."
                await tools.fail(obj, task, Reason.OUTPUT_UNAVAILABLE, message)
                self._note_lag(task, watch)
                return True
            pause = error.retry_after or 2.0 ** (watch.copy_failures - 1)
            self._postpone(task, watch, pause, least=pause)
            return False
        tools.failpoints.reach("after-outputs")
        with tools.traces.begin(task, "complete"):
            charged = await self._price(task, report)
            now = tools.now()
            await tools.journal.commit(obj, record_completion(task, videos, charged, now))
        tools.metrics.count_end(Reason.COMPLETED, Phase.COMPLETED, tools.age(task))
        self._note_lag(task, watch)
        tools.failpoints.reach("after-terminal")
        return True

    def _note_lag(self, task: GatewayTask, watch: _Watch) -> None:
        """Takes in that the end of a job is in the record."""
        now, job, metrics = self._tools.now(), task.status.upstream, self._tools.metrics
        if watch.ended_at is not None:
            metrics.record_delay.observe(max(0.0, (now - watch.ended_at).total_seconds()))
        # a job that no poll of this process saw running may have ended as soon as it was begun
        begun = parse_time(job.intent_time) if job and job.intent_time else None
        since = watch.running_at or begun
        if since is not None:
            metrics.detection_lag.observe(max(0.0, (now - since).total_seconds()))

    async def _price(self, task: GatewayTask, report: JobReport) -> int:
        """Micro-dollars for what was made, at the price of the time it was asked for."""
        request, reserved = task.spec.request, reserved_micros(task)
        if report.seconds is None:
            return reserved
        try:
            values = await read_stored_values(self._tools, request)
        except (InputDamaged, ObjectMissing):
            return reserved
        model = self._tools.catalog().find_model(request.service, request.action, request.model_id)
        at = parse_time(task.metadata.creation_timestamp)
        price = None if model is None else select_price(model.prices, at)
        # the decimal that the provider wrote, and not the binary next to it
        used = Usage(seconds=Fraction(str(report.seconds)))
        return charge(price, bound_task(values), used, reserved=reserved)

    async def _handle(
        self,
        obj: Object,
        task: GatewayTask,
        upstream: Upstream,
        watch: _Watch,
        error: UpstreamError,
    ) -> bool:
        """Deals with a poll that told nothing; as `poll`."""
        if isinstance(error, UpstreamGone):
            watch.gone_since = watch.gone_since if watch.gone else time.monotonic()
            watch.gone += 1
            silent = time.monotonic() - watch.gone_since
            if watch.gone >= LOST_ANSWERS and silent >= LOST_SECONDS:
                message = "The provider has lost the job."
                await self._tools.fail(obj, task, Reason.JOB_LOST, message)
                return True
        if isinstance(error, UpstreamDenied):
            await self._tools.alarms.report_denial(task, error)
        watch.failures += 1
        pause = min(LONGEST_PAUSE, 2.0 ** min(watch.failures - 1, 8))
        # the notice that is said to come has perhaps been: it is no reason to wait for long
        pause = max(pause, self._declared_interval(task, upstream), error.retry_after or 0.0)
        self._postpone(task, watch, pause, least=error.retry_after)
        return False

    def _interval(self, task: GatewayTask, upstream: Upstream) -> float:
        if upstream.notified_interval is not None and self._tools.notify_url(task):
            return upstream.notified_interval * random.uniform(0.9, 1.1)  # noqa: S311
        return self._declared_interval(task, upstream)

    def _declared_interval(self, task: GatewayTask, upstream: Upstream) -> float:
        least, most = upstream.poll_interval
        age = (self._tools.now() - parse_time(task.status.start_time)).total_seconds()
        return min(most, max(least, age * AGE_SHARE)) * random.uniform(0.9, 1.1)  # noqa: S311

    def _postpone(
        self, task: GatewayTask, watch: _Watch, seconds: float, *, least: float | None
    ) -> None:
        """Plans the next poll; a notice can bring it forward, but for `least` seconds."""
        now = time.monotonic()
        watch.hastened_from = max(watch.hastened_from, now + (least or 0.0))
        watch.due = now + seconds
        if watch.told:
            watch.due = min(watch.due, max(now, watch.hastened_from))
        self._plan(task, watch)

    def _plan(self, task: GatewayTask, watch: _Watch) -> None:
        """Has the task looked at when the poll is due."""
        self._tools.look_again(task, watch.due - time.monotonic())
