"""The last steps: a task is stopped, or runs out of time, and is closed once it has ended."""

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import CHARGED, FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time
from gateway_core.failures import describe_failure
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.upstream import Upstream, UpstreamError
from gateway_operator.billing.reservations import Reservations
from gateway_operator.context import Context
from gateway_operator.reconciler import AT_ONCE, Next, after
from gateway_operator.tasks.attempts import ReceivedJob
from gateway_operator.tasks.cache import TaskWriter
from gateway_operator.tasks.calls import ProviderCalls
from gateway_operator.tasks.recording import Recording
from gateway_operator.tasks.submission import Submission

STOP_SECONDS = 30.0
STOP_PAUSE = 2.0
EXPIRE_SECONDS = 10.0
CANCELLED_MESSAGE = "The task was cancelled."

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Ending:
    """Ends tasks and closes them."""

    context: Context
    writer: TaskWriter
    calls: ProviderCalls
    submission: Submission
    reservations: Reservations
    recording: Recording
    _stopping: dict[str, float] = field(default_factory=dict, init=False)

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s end."""
        self._stopping.pop(name, None)

    async def stop(self, task: GatewayTask) -> Next:
        """Stop the upstream job, within 30 s or not at all, and fail the task."""
        name = task.metadata.name
        since = self._stopping.setdefault(name, time.monotonic())
        left = since + STOP_SECONDS - time.monotonic()
        problem = await self._try_to_cancel(task, left)
        if problem is not None:
            if left > STOP_PAUSE:
                return after(STOP_PAUSE)
            self._abandon(task, f"the job may still be running: {problem}")
        await self.writer.fail(task, Reason.CANCELLED, CANCELLED_MESSAGE)
        # after the write: if it is superseded, a job that was received here is still known
        self.submission.note_end(name)
        return AT_ONCE

    async def expire(self, task: GatewayTask) -> Next:
        """Fail a task whose deadline is over, after one attempt to stop its job."""
        name, job = task.metadata.name, self.submission.find_intent(task)
        job_id = (job.job_id if job else None) or self.submission.job_of(name)
        problem = await self._try_to_cancel(task, EXPIRE_SECONDS)
        if problem is not None:
            _log.info("job not stopped at the deadline", object=name, error=problem)
        seconds = task.spec.deadline_seconds
        if job_id is None:
            message = f"The provider did not take the job within {seconds} seconds."
            await self.writer.fail(task, Reason.PROVIDER_UNAVAILABLE, message)
        else:
            message = f"The provider did not finish the job within {seconds} seconds."
            await self.writer.fail(task, Reason.DEADLINE_EXCEEDED, message)
        self.submission.note_end(name)
        return AT_ONCE

    async def stop_stray(self, job: ReceivedJob) -> None:
        """Stop a job that cannot be recorded with its task, in one attempt; an event reports it."""
        provider = job.provider_name
        problem = "was stopped"
        try:
            async with asyncio.timeout(EXPIRE_SECONDS):
                upstream = await self.calls.find_to_stop(provider)
                if upstream is None or not upstream.can_cancel:
                    problem = "cannot be stopped"
                else:
                    with self.calls.watch(job.task, provider, "cancel"):
                        await upstream.cancel(job.id)
        except (UpstreamError, KubernetesError, TimeoutError) as error:
            problem = f"may still be running ({describe_failure(error)})"
        text = f"job {job.id} of {provider} {problem}: another owner has ended or moved the task"
        _log.warning("unrecorded job", object=job.task.metadata.name, error=text)
        self._abandon(job.task, text)

    async def close(self, task: GatewayTask) -> Next:
        """Settle an ended task's hold, aggregate its charge, archive it and remove the finalizer.

        Each part can be repeated, and the last is the mark that the others are done.
        """
        failpoints = self.context.failpoints
        # in this order: once the finalizer is gone the object may vanish at any time, and with it
        # the only source of the archive, the charge and the settlement
        await self.reservations.settle(task.source)
        failpoints.reach("after-settle")
        await self.recording.record(task)
        kept = [name for name in task.metadata.finalizers if name != TASK_FINALIZER]
        labels = {**task.metadata.labels}
        if labels.get(FOLDED_LABEL) in (None, CHARGED):
            labels[FOLDED_LABEL] = format_label_time(self.context.now())
        # `managedFields` is a third of the object, and of an ended one nothing reads it
        marks = {"finalizers": kept, "labels": labels, "managedFields": [{}]}
        await self.writer.amend(task, {"metadata": marks})
        self.recording.note_label(task)
        failpoints.reach("after-finalizer")
        return AT_ONCE

    async def _try_to_cancel(self, task: GatewayTask, seconds: float) -> str | None:
        """Stop the job if there is one; what went wrong, if something did within `seconds`."""
        try:
            async with asyncio.timeout(max(0.1, seconds)):
                await self._cancel_job(task)
        except UpstreamError as error:
            return error.message
        except KubernetesError as error:
            return f"the provider's resource could not be read ({describe_failure(error)})"
        except TimeoutError:
            return "the provider did not answer in time"
        return None

    async def _cancel_job(self, task: GatewayTask) -> None:
        """Stop the job if there is one. UpstreamError while it could not be stopped."""
        job = self.submission.find_intent(task)
        if job is None:
            return
        upstream = await self.calls.find_to_stop(job.provider_name)
        if upstream is None:
            self._abandon(task, f"provider {job.provider_name} is not usable")
            return
        job_id = job.job_id or self.submission.job_of(task.metadata.name)
        job_id = job_id or await self._find_job(task, job.provider_name, upstream)
        if job_id is None or not upstream.can_cancel:
            return
        with self.calls.watch(task, job.provider_name, "cancel"):
            await upstream.cancel(job_id)

    async def _find_job(self, task: GatewayTask, provider: str, upstream: Upstream) -> str | None:
        """Return the job of a task whose submission was cut short.

        With keys alone the only way to learn the id is to submit again, which would start paid
        work to stop it; an event reports it instead.
        """
        if upstream.can_find:
            with self.calls.watch(task, provider, "find"):
                return await upstream.find(task.metadata.uid)
        self._abandon(task, "it was being submitted, a job may have been started")
        return None

    def _abandon(self, task: GatewayTask, problem: str) -> None:
        self.context.events.warn(task.source, reason="JobAbandoned", message=problem)
