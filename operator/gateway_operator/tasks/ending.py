"""The last steps: a task is stopped, runs out of time, or is closed once it has ended."""

import asyncio
import time

import structlog

from gateway_core.api.conditions import Reason
from gateway_core.api.ids import FOLDED_LABEL, TASK_FINALIZER
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_label_time
from gateway_core.kube.errors import KubernetesError
from gateway_core.providers.upstream import Upstream, UpstreamError
from gateway_core.tasks.archive import archive_task
from gateway_operator.billing.settlement import settle_hold
from gateway_operator.tasks.attempts import ReceivedJob
from gateway_operator.tasks.submission import Submission
from gateway_operator.tasks.tools import Tools

STOP_SECONDS = 30.0
STOP_PAUSE = 2.0
EXPIRE_SECONDS = 10.0
CANCELLED_MESSAGE = "The task was cancelled."

_log = structlog.get_logger(__name__)


class Ending:
    """Ends tasks and lets go of their objects."""

    def __init__(self, tools: Tools, submission: Submission) -> None:
        self._tools = tools
        self._submission = submission
        self._stopping: dict[str, float] = {}

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s end."""
        self._stopping.pop(name, None)

    async def stop(self, obj: Object, task: GatewayTask) -> bool:
        """Stops the upstream job, within 30 s or not at all, and fails the task."""
        name = task.metadata.name
        since = self._stopping.setdefault(name, time.monotonic())
        left = since + STOP_SECONDS - time.monotonic()
        problem = await self._try_to_cancel(obj, task, left)
        if problem is not None:
            if left > STOP_PAUSE:
                self._tools.queue.add_after(name, STOP_PAUSE)
                return False
            await self._abandon(obj, f"the job may still be running: {problem}")
        await self._tools.fail(obj, task, Reason.CANCELLED, CANCELLED_MESSAGE)
        self._submission.note_end(name)
        return True

    async def expire(self, obj: Object, task: GatewayTask) -> bool:
        """Fails a task whose time is over, after one attempt to stop its job."""
        name, job = task.metadata.name, self._submission.find_intent(task)
        job_id = (job.job_id if job else None) or self._submission.job_of(name)
        problem = await self._try_to_cancel(obj, task, EXPIRE_SECONDS)
        if problem is not None:
            _log.info("job not stopped at the deadline", object=name, error=problem)
        seconds = task.spec.deadline_seconds
        if job_id is None:
            message = f"The provider did not take the job within {seconds} seconds."
            await self._tools.fail(obj, task, Reason.PROVIDER_UNAVAILABLE, message)
        else:
            message = f"The provider did not finish the job within {seconds} seconds."
            await self._tools.fail(obj, task, Reason.DEADLINE_EXCEEDED, message)
        self._submission.note_end(name)
        return True

    async def stop_stray(self, job: ReceivedJob) -> None:
        """Stops a job that cannot be recorded with its task; one attempt, and an admin is told."""
        tools, provider = self._tools, job.provider_name
        problem = "was stopped"
        try:
            async with asyncio.timeout(EXPIRE_SECONDS):
                upstream = await tools.providers.find(provider)
                if upstream is None or not upstream.can_cancel:
                    problem = "cannot be stopped"
                else:
                    with tools.calls.watch(job.task, provider, "cancel"):
                        await upstream.cancel(job.id)
        except (UpstreamError, KubernetesError, TimeoutError) as error:
            problem = f"may still be running ({type(error).__name__})"
        text = f"job {job.id} of {provider} {problem}: another owner has ended or moved the task"
        _log.warning("unrecorded job", object=job.task.metadata.name, error=text)
        await self._abandon(job.obj, text)

    async def close(self, obj: Object, task: GatewayTask) -> bool:
        """Archives an ended task, settles its hold, folds its charge and lets go of its object.

        Each part can be repeated, and the last is the mark that the others are done.
        """
        tools = self._tools
        await archive_task(tools.store, obj)
        tools.failpoints.reach("after-archive")
        await settle_hold(tools, obj)
        tools.failpoints.reach("after-settle")
        await tools.folding.fold(obj)
        tools.failpoints.reach("after-fold")
        kept = [name for name in task.metadata.finalizers if name != TASK_FINALIZER]
        labels = {FOLDED_LABEL: format_label_time(tools.now()), **task.metadata.labels}
        # who wrote which field is a third of the object, and asked of an ended one by nobody
        marks = {"finalizers": kept, "labels": labels, "managedFields": [{}]}
        await tools.journal.amend(obj, {"metadata": marks})
        tools.folding.acknowledge(obj)
        tools.failpoints.reach("after-finalizer")
        return True

    async def _try_to_cancel(self, obj: Object, task: GatewayTask, seconds: float) -> str | None:
        """Stops the job if there is one; what went wrong, if something did within `seconds`."""
        try:
            async with asyncio.timeout(max(0.1, seconds)):
                await self._cancel_job(obj, task)
        except UpstreamError as error:
            return error.message
        except KubernetesError as error:
            return f"the provider's resource could not be read ({type(error).__name__})"
        except TimeoutError:
            return "the provider did not answer in time"
        return None

    async def _cancel_job(self, obj: Object, task: GatewayTask) -> None:
        """Stops the job if there is one; raises UpstreamError while it could not be."""
        job = self._submission.find_intent(task)
        if job is None:
            return
        upstream = await self._tools.providers.find(job.provider_name)
        if upstream is None:
            await self._abandon(obj, f"provider {job.provider_name} is not usable")
            return
        job_id = job.job_id or self._submission.job_of(task.metadata.name)
        job_id = job_id or await self._find_job(obj, task, job.provider_name, upstream)
        if job_id is None:
            return
        if not upstream.can_cancel:
            return
        with self._tools.calls.watch(task, job.provider_name, "cancel"):
            await upstream.cancel(job_id)

    async def _find_job(
        self, obj: Object, task: GatewayTask, provider: str, upstream: Upstream
    ) -> str | None:
        """The job of a task whose submission was cut short.

        With keys alone the only way to learn the id is to submit again, which would start paid
        work to stop it; an admin is told instead.
        """
        if upstream.can_find:
            with self._tools.calls.watch(task, provider, "find"):
                return await upstream.find(task.metadata.uid)
        await self._abandon(obj, "it was being submitted, a job may have been started")
        return None

    async def _abandon(self, obj: Object, problem: str) -> None:
        await self._tools.kube.report_event(obj, reason="JobAbandoned", message=problem)
