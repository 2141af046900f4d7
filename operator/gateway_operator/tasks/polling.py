"""The third step: the job is polled, without a write, until it has ended.

The interval grows with the task's age between the bounds that the provider declares; a malformed
answer counts as none, and the deadline ends a job that the provider never ends. A provider's notice
makes a poll due at once, but with a growing pause between them: many notices would be a flood.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

from gateway_core.api.conditions import Reason
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
from gateway_operator.context import Context
from gateway_operator.reconciler import AT_ONCE, Next, WorkQueue, after
from gateway_operator.tasks.cache import TaskWriter
from gateway_operator.tasks.calls import COPY, Inputs, Outputs, ProviderCalls, name_outcome
from gateway_operator.tasks.holds import Holds
from gateway_operator.tasks.submission import LONGEST_PAUSE, PROVIDER_PAUSE
from gateway_operator.tasks.waits import Waits

AGE_SHARE = 0.1
SHOWN_FAILURES = 3
"""Failed polls in a row from which the task is shown to wait."""
LOST_ANSWERS = 3
LOST_SECONDS = 60.0
"""A provider's front end that answers 404 during a deployment has not lost the jobs behind it."""

MOST_COPY_ATTEMPTS = 6
FIRST_NOTICE_PAUSE = 1.0
LONGEST_NOTICE_PAUSE = 10.0


@dataclass(slots=True)
class _Polls:
    """The polls of one job: when the next is due, and recent failures. A restart may lose them.

    `running_at` is when the last poll was sent that still said running, `ended_at` when the end was
    first seen. `span` covers all polls together. `noticed` is whether a notice has come since the
    last poll. No notice makes a poll due before `hastened_from`.
    """

    due: float
    noticed: bool = False
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
        """End the span, if it has begun: no further poll follows."""
        self.span.end()
        self.span = NO_SPAN


@dataclass(eq=False)
class Polling:
    """Polls jobs, and copies and prices what they made."""

    context: Context
    queue: WorkQueue
    writer: TaskWriter
    calls: ProviderCalls
    inputs: Inputs
    holds: Holds
    outputs: Outputs
    waits: Waits
    _polls: dict[str, _Polls] = field(default_factory=dict, init=False)

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s polls."""
        polls = self._polls.pop(name, None)
        if polls is not None:
            polls.end_span()

    def hasten(self, name: str) -> bool:
        """Make the poll of a live task due, as soon as notices may; whether that is news.

        A notice may come before the job's id is recorded, and during a poll that was sent before
        the job ended: it counts for the next one.
        """
        polls = self._polls.setdefault(name, _Polls(due=float("inf")))
        if polls.noticed:
            return False
        polls.noticed = True
        polls.due = min(polls.due, max(time.monotonic(), polls.hastened_from))
        self.queue.add_after(name, polls.due - time.monotonic())
        return True

    async def poll(self, task: GatewayTask) -> Next:
        """Poll the job if that is due."""
        context, name, job = self.context, task.metadata.name, task.status.upstream
        assert job is not None
        assert job.job_id is not None
        upstream = await self.calls.find(job.provider_name)
        if upstream is None:
            problem = await self.calls.explain(job.provider_name)
            await self.waits.show(task, Reason.WAITING_FOR_PROVIDER, problem)
            return after(PROVIDER_PAUSE)
        polls = self._polls.get(name)
        if polls is None:
            first = upstream.poll_interval[0] * random.uniform(0.5, 1.0)  # noqa: S311
            polls = self._polls[name] = _Polls(due=time.monotonic() + first)
        if polls.due > time.monotonic():
            return after(polls.due - time.monotonic())
        context.metrics.poll_delay.observe(time.monotonic() - polls.due)
        if polls.noticed:
            polls.noticed = False
            pause = min(LONGEST_NOTICE_PAUSE, FIRST_NOTICE_PAUSE * 2.0 ** min(polls.hastened, 8))
            polls.hastened += 1
            polls.hastened_from = time.monotonic() + pause
        await self.holds.make_up(task)
        if polls.span is NO_SPAN:
            polls.span = self.calls.traces.begin(task, "poll", kind=SpanKind.CLIENT)
        polled_at = context.now()
        try:
            with self.calls.time(job.provider_name, "poll"):
                report = await upstream.poll(job.job_id)
        except UpstreamError as error:
            polls.span.add_event("poll", {"outcome": name_outcome(error)})
            return await self._handle(task, upstream, polls, error)
        polls.span.add_event("poll", {"outcome": report.state.value})
        polls.failures = polls.gone = 0
        if report.state is JobState.RUNNING:
            polls.running_at = polled_at
            pause = max(self._interval(task, upstream), report.retry_after or 0.0)
            following = self._postpone(polls, pause, least=report.retry_after)
            await self.waits.end(task)
            return following
        polls.end_span()
        polls.ended_at = polls.ended_at or context.now()
        if report.state is JobState.SUCCEEDED:
            return await self._complete(task, upstream, polls, report)
        message = report.message or "The provider could not generate the output."
        if report.state is JobState.CANCELLED:
            message = report.message or "The provider cancelled the job."
        return await self._fail(task, polls, Reason.GENERATION_FAILED, message)

    async def _complete(
        self, task: GatewayTask, upstream: Upstream, polls: _Polls, report: JobReport
    ) -> Next:
        """Copy the outputs, then record the end with its price."""
        context, now = self.context, self.context.now()
        provider = task.status.upstream.provider_name if task.status.upstream else ""
        context.failpoints.reach("before-outputs")
        try:
            left = (deadline(task) - now).total_seconds()
            async with asyncio.timeout(max(1.0, left)):
                with self.calls.watch(task, provider, COPY):
                    videos = await self.outputs.copy(
                        upstream, task.metadata.uid, report.outputs, now
                    )
        except OutputRejected as error:
            return await self._fail(task, polls, Reason.OUTPUT_UNAVAILABLE, error.message)
        except TimeoutError:
            return AT_ONCE  # the deadline is over, which the next step handles
        except UpstreamError as error:
            polls.copy_failures += 1
            if polls.copy_failures >= MOST_COPY_ATTEMPTS:
                message = "The output could not be fetched from the provider."
                return await self._fail(task, polls, Reason.OUTPUT_UNAVAILABLE, message)
            pause = error.retry_after or 2.0 ** (polls.copy_failures - 1)
            following = self._postpone(polls, pause, least=pause)
            text = f"an output of provider {provider}: {error}"
            await self.waits.show(task, Reason.WAITING_FOR_PROVIDER, text, is_answer=True)
            return following
        context.failpoints.reach("after-outputs")
        with self.calls.traces.begin(task, "complete"):
            charged = await self._price(task, report)
            completion = record_completion(task, videos, charged, context.now())
            await self.writer.commit(task, completion)
        context.metrics.count_end(Reason.COMPLETED, Phase.COMPLETED, context.age(task))
        self._observe_lag(task, polls)
        context.failpoints.reach("after-terminal")
        return AT_ONCE

    async def _fail(self, task: GatewayTask, polls: _Polls, reason: Reason, message: str) -> Next:
        await self.writer.fail(task, reason, message)
        self._observe_lag(task, polls)
        return AT_ONCE

    def _observe_lag(self, task: GatewayTask, polls: _Polls) -> None:
        """Measure how late the end of a job is recorded."""
        now, job, metrics = self.context.now(), task.status.upstream, self.context.metrics
        if polls.ended_at is not None:
            metrics.record_delay.observe(max(0.0, (now - polls.ended_at).total_seconds()))
        # a job that no poll of this process saw running may have ended as soon as it was begun
        begun = parse_time(job.intent_time) if job and job.intent_time else None
        since = polls.running_at or begun
        if since is not None:
            metrics.detection_lag.observe(max(0.0, (now - since).total_seconds()))

    async def _price(self, task: GatewayTask, report: JobReport) -> int:
        """Micro-dollars for what was made, at the price of when the task was created."""
        request, reserved = task.spec.request, reserved_micros(task)
        if report.seconds is None:
            return reserved
        try:
            values = await self.inputs.read_adopted(request)
        except (InputDamaged, ObjectMissing):
            return reserved
        model = self.inputs.find_model(request)
        at = parse_time(task.metadata.creation_timestamp)
        price = None if model is None else select_price(model.prices, at)
        # the decimal that the provider wrote, and not the binary fraction next to it
        used = Usage(seconds=Fraction(str(report.seconds)))
        return charge(price, bound_task(values), used, reserved=reserved)

    async def _handle(
        self, task: GatewayTask, upstream: Upstream, polls: _Polls, error: UpstreamError
    ) -> Next:
        """Return the next step after a poll without a usable answer."""
        if isinstance(error, UpstreamGone):
            polls.gone_since = polls.gone_since if polls.gone else time.monotonic()
            polls.gone += 1
            silent = time.monotonic() - polls.gone_since
            if polls.gone >= LOST_ANSWERS and silent >= LOST_SECONDS:
                await self.writer.fail(task, Reason.JOB_LOST, "The provider has lost the job.")
                return AT_ONCE
        if isinstance(error, UpstreamDenied):
            await self.context.events.report_denial(task, error)
        polls.failures += 1
        pause = min(LONGEST_PAUSE, 2.0 ** min(polls.failures - 1, 8))
        # the notice may have come during the outage: no reason to wait longer than without one
        pause = max(pause, self._declared_interval(task, upstream), error.retry_after or 0.0)
        following = self._postpone(polls, pause, least=error.retry_after)
        if polls.failures >= SHOWN_FAILURES and task.status.upstream is not None:
            text = f"provider {task.status.upstream.provider_name}: {error}"
            await self.waits.show(task, Reason.WAITING_FOR_PROVIDER, text, is_answer=True)
        return following

    def _interval(self, task: GatewayTask, upstream: Upstream) -> float:
        if upstream.notified_interval is not None and self.calls.notify_url(task):
            return upstream.notified_interval * random.uniform(0.9, 1.1)  # noqa: S311
        return self._declared_interval(task, upstream)

    def _declared_interval(self, task: GatewayTask, upstream: Upstream) -> float:
        least, most = upstream.poll_interval
        age = self.context.seconds_since(task.status.start_time)
        return min(most, max(least, age * AGE_SHARE)) * random.uniform(0.9, 1.1)  # noqa: S311

    def _postpone(self, polls: _Polls, seconds: float, *, least: float | None) -> Next:
        """Schedule the next poll; a notice can bring it forward, but for `least` seconds."""
        now = time.monotonic()
        polls.hastened_from = max(polls.hastened_from, now + (least or 0.0))
        polls.due = now + seconds
        if polls.noticed:
            polls.due = min(polls.due, max(now, polls.hastened_from))
        return after(polls.due - time.monotonic())
