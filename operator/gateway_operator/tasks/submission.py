"""The second step: the job is started once, whatever happens on the way.

An answer that never came is cleared up by the provider's declared means: the same idempotency key,
a look-up by reference, else its policy. Where no key protects, a call that may start a job is made
only within seconds of this process recording its intent by compare-and-set, so that an owner who
was paused finds out that he is not the owner any more. Where the task's request names the route,
another owner may be submitting there with no intent on record: no owner submits anywhere else. How
long another's call may still be under way is measured from when his intent was first seen here: no
clock but the own one counts. An id that was received is kept until it is recorded, whatever happens
to the writes.
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

import structlog

from gateway_core.api.conditions import Reason
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask, UpstreamJob
from gateway_core.kube.errors import WriteOutcomeUnknown
from gateway_core.providers.upstream import (
    JobInput,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_core.storage.objects import ObjectMissing
from gateway_core.tasks.archive import InputDamaged
from gateway_core.tasks.lifecycle import (
    is_terminal,
    record_intent,
    record_job,
    reserved_micros,
    withdraw_intent,
)
from gateway_operator.tasks.attempts import FRESH_SECONDS, Attempt, ReceivedJob
from gateway_operator.tasks.holds import Holds
from gateway_operator.tasks.inputs import Unacceptable, read_values
from gateway_operator.tasks.limits import Limits
from gateway_operator.tasks.statuswriter import Superseded
from gateway_operator.tasks.tools import Tools
from gateway_operator.workqueue import Draining

PROVIDER_PAUSE = 3.0
LONGEST_PAUSE = 30.0
DENIED_SECONDS = 60.0

_log = structlog.get_logger(__name__)


class Submission:
    """Starts jobs."""

    def __init__(self, tools: Tools, holds: Holds, limits: Limits) -> None:
        self._tools = tools
        self._holds = holds
        self._limits = limits
        self._attempts: dict[str, Attempt] = {}

    async def commit_intent(self, obj: Object, status: dict[str, Any]) -> None:
        """Records an intent, and that it is this process's own. Superseded if it did not land.

        A write whose acknowledgement was lost has landed all the same if it is found there. Raises
        Draining where nothing more is begun.
        """
        if self._tools.queue.is_draining:
            raise Draining
        name = obj["metadata"]["name"]
        written, begun_at = status["upstream"]["intentTime"], time.monotonic()
        attempt = self._attempts.setdefault(name, Attempt())
        attempt.is_writing = True
        try:
            await self._tools.journal.commit(obj, status)
        except Superseded as conflict:
            newest = self._tools.live.get(name) or {}
            upstream = (newest.get("status") or {}).get("upstream") or {}
            is_unsure = isinstance(conflict.__cause__, WriteOutcomeUnknown)
            if is_unsure and upstream.get("intentTime") == written:
                self._note_intent(name, written, begun_at)
            raise
        finally:
            attempt.is_writing = False
        self._note_intent(name, written, begun_at)

    def note_created(self, name: str) -> None:
        """Takes note that the task was created while this process watched.

        No earlier owner has made a job; another that watches at the same time may be making one.
        """
        self._attempts.setdefault(name, Attempt(outcome_known=True))

    def hold_intent_back(self, obj: Object, status: dict[str, Any]) -> None:
        """Has an intent that the task's request names written together with the job's id.

        Whoever else takes the task up submits it at the same place with the same key. Superseded.
        """
        self._tools.journal.hold_back(obj, status)
        attempt = self._attempts.setdefault(obj["metadata"]["name"], Attempt())
        attempt.see(status["upstream"]["intentTime"], time.monotonic())
        attempt.intent_time = status["upstream"]["intentTime"]
        attempt.recorded_at = float("-inf")

    def find_intent(self, task: GatewayTask) -> UpstreamJob | None:
        """Where a job of the task was started, or may have been; None if that is ruled out."""
        route = task.spec.request.route
        if task.status.upstream is not None or route is None:
            return task.status.upstream
        if not self._holds.is_admitted(task):
            return None
        return UpstreamJob(provider_name=route.provider_name, upstream_model=route.upstream_model)

    def job_of(self, name: str) -> str | None:
        """The id of a job that was received and is not recorded yet."""
        attempt = self._attempts.get(name)
        return None if attempt is None or attempt.job is None else attempt.job.id

    def take_stray(self, name: str, task: GatewayTask | None) -> ReceivedJob | None:
        """Hands over a job that was received here and cannot be recorded with the task any more.

        Another owner has ended the task meanwhile, has recorded another provider or job with it, or
        the task is gone: then `task` is None.
        """
        attempt = self._attempts.get(name)
        if attempt is None or attempt.job is None:
            return None
        job, record = attempt.job, None if task is None else task.status.upstream
        is_there = record is not None and record.provider_name == job.provider_name
        if record is not None and is_there and record.job_id == job.id:
            del self._attempts[name]
            return None
        is_open = task is not None and not is_terminal(task)
        if is_open and (record is None or (is_there and record.job_id is None)):
            return None
        del self._attempts[name]
        return job

    def has_begun(self, name: str) -> bool:
        """Whether a submission is so far that it had better be brought to its end here."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return False
        is_called = attempt.intent_time is not None and not attempt.outcome_known
        is_intended = attempt.is_writing or attempt.is_fresh
        return is_called or is_intended or attempt.job is not None

    async def withdraw(self) -> None:
        """Takes back own intents that have led to no job, for a successor that knows nothing.

        Where no key protects he would wait out a call that nobody makes, and then perhaps give up.
        What is still being worked is left alone: it may be about to make that call.
        """
        names = [
            name
            for name, attempt in self._attempts.items()
            if attempt.outcome_known and attempt.job is None
            if not self._tools.queue.is_worked(name)
        ]
        await asyncio.gather(*(self._withdraw_one(name) for name in names), return_exceptions=True)

    async def _withdraw_one(self, name: str) -> None:
        obj, attempt = self._tools.live.get(name), self._attempts[name]
        job = None if obj is None else GatewayTask.model_validate(obj).status.upstream
        if obj is None or job is None or job.job_id or job.intent_time != attempt.intent_time:
            return
        upstream = await self._tools.providers.find(job.provider_name)
        if upstream is None or not is_keyed(upstream):
            await self._tools.journal.commit(obj, withdraw_intent())

    def _note_intent(self, name: str, written: str, begun_at: float) -> None:
        attempt = self._attempts.setdefault(name, Attempt())
        attempt.see(written, begun_at)
        attempt.intent_time, attempt.recorded_at = written, begun_at
        attempt.outcome_known = True

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s attempts, but for a job that is not recorded yet."""
        if self.job_of(name) is None:
            self._attempts.pop(name, None)

    def note_end(self, name: str) -> None:
        """Takes note that the task was ended here, and its job stopped as far as can be."""
        self._attempts.pop(name, None)

    async def submit(self, obj: Object, task: GatewayTask) -> bool:
        """Starts the job, or finds the one that was started. Whether the task can go on at once."""
        tools, name, intent = self._tools, task.metadata.name, task.status.upstream
        assert intent is not None
        attempt = self._attempts.setdefault(name, Attempt())
        attempt.see(intent.intent_time or "", time.monotonic())
        if attempt.job is not None:
            await self._record(obj, task, attempt.job.id)
            return True
        wait = attempt.due - time.monotonic()
        if wait > 0:
            tools.look_again(task, wait)
            return False
        # also where a job is only to be found: once it runs, its hold is not asked for any more
        if not await self._holds.ensure(task):
            return False
        upstream = await tools.providers.find(intent.provider_name)
        held = reserved_micros(task)
        may_refuse = self._may_refuse(name, attempt, intent, upstream)
        if may_refuse and not await self._limits.enforce(obj, task, held):
            return True
        if upstream is None:
            tools.look_again(task, PROVIDER_PAUSE)
            await self._show_intent(obj, attempt)
            return False
        try:
            if not await self._may_start(obj, task, upstream, attempt):
                return False
            job = await self._describe(task, intent)
            if not (attempt.is_fresh or is_keyed(upstream)):
                await self._renew_intent(obj, task)
                return False
            job_id = await self._start(obj, task, upstream, job, attempt)
        except (UpstreamError, Unacceptable, InputDamaged, ObjectMissing) as error:
            return await self._handle(obj, task, attempt, error)
        tools.failpoints.reach("after-submit")
        await self._record(obj, task, job_id)
        return True

    def _may_refuse(
        self, name: str, attempt: Attempt, intent: UpstreamJob, upstream: Upstream | None
    ) -> bool:
        """Whether the task may fail by a limit: what a job costs would be nobody's.

        An intent that was held back rules out nothing of what another owner does. Once it is on
        record his write does not land, and he decides anew; his call gets the time that it takes.
        """
        if attempt.rules_out_job(intent):
            return True
        if upstream is None or self._tools.live.is_unwritten(name):
            return False
        waited = time.monotonic() - attempt.seen_at
        return attempt.knows_outcome(intent) and waited > FRESH_SECONDS + upstream.submit_seconds

    async def _show_intent(self, obj: Object, attempt: Attempt) -> None:
        """Writes an intent that was held back, since the task waits, which an admin should see."""
        if self._tools.live.is_unwritten(obj["metadata"]["name"]):
            await self._tools.journal.commit(obj, {})
            attempt.seen_at = time.monotonic()

    async def _start(
        self, obj: Object, task: GatewayTask, upstream: Upstream, job: JobInput, attempt: Attempt
    ) -> str:
        """Makes the call; its outcome is unknown until it is certain that no job was made."""
        assert task.status.upstream is not None
        provider = task.status.upstream.provider_name
        known_before, attempt.outcome_known = attempt.outcome_known, False
        try:
            with self._tools.calls.watch(task, provider, "submit") as span:
                told = replace(job, traceparent=self._tools.traces.name_for_provider(span))
                job_id = await upstream.submit(told)
        except (UpstreamRejected, UpstreamBusy, UpstreamDenied):
            attempt.outcome_known = known_before
            raise
        self._check_job(task, job_id)
        attempt.job = ReceivedJob(job_id, provider, obj, task)
        # it may have been forgotten during the call, with a task that another owner has ended
        self._attempts[task.metadata.name] = attempt
        return job_id

    def _check_job(self, task: GatewayTask, job_id: str) -> None:
        """Raises UpstreamUnclear where another task has a job of that id.

        A provider that gives one id to two tasks would have one of them take the other's output,
        perhaps another account's: of which job is whose nothing is known then.
        """
        assert task.status.upstream is not None
        provider, name = task.status.upstream.provider_name, task.metadata.name
        if not self._tools.live.claim_job(provider, job_id, name):
            _log.error("a provider gave one id to two tasks", object=name, provider=provider)
            raise UpstreamUnclear("The provider gave an id that another task's job has.")

    async def _may_start(
        self, obj: Object, task: GatewayTask, upstream: Upstream, attempt: Attempt
    ) -> bool:
        """Whether a call that may start a job is safe now.

        If not, the task has been moved on in another way, or is due later.
        """
        if is_keyed(upstream):
            return True
        assert task.status.upstream is not None
        if attempt.rules_out_job(task.status.upstream):
            if attempt.is_fresh:
                return True
            await self._renew_intent(obj, task)
            return False
        if upstream.guarantee is SubmissionGuarantee.LOOKUP:
            with self._tools.calls.watch(task, task.status.upstream.provider_name, "find"):
                job_id = await upstream.find(task.metadata.uid)
            if job_id is not None:
                self._check_job(task, job_id)
                await self._record(obj, task, job_id)
                self._tools.queue.add(task.metadata.name)
                return False
        wait = attempt.seen_at + FRESH_SECONDS + upstream.submit_seconds - time.monotonic()
        if wait > 0:
            self._tools.look_again(task, wait)
            return False
        if upstream.guarantee is SubmissionGuarantee.LOOKUP or upstream.resubmits_unknown:
            await self._renew_intent(obj, task)
            return False
        message = "It is unknown whether the provider took the job; it was not submitted again."
        await self._tools.fail(obj, task, Reason.SUBMISSION_UNKNOWN, message)
        self._tools.queue.add(task.metadata.name)
        return False

    async def _renew_intent(self, obj: Object, task: GatewayTask) -> None:
        intent = task.status.upstream
        assert intent is not None
        status = record_intent(
            task,
            provider=intent.provider_name,
            upstream_model=intent.upstream_model or "",
            reserved=reserved_micros(task),
            now=self._tools.now(),
        )
        await self.commit_intent(obj, status)
        self._tools.queue.add(task.metadata.name)

    async def _record(self, obj: Object, task: GatewayTask, job_id: str) -> None:
        await self._tools.journal.commit(obj, record_job(task, job_id, self._tools.now()))
        self._tools.metrics.submit_delay.observe(max(0.0, self._tools.age(task)))
        self._attempts.pop(task.metadata.name, None)
        self._tools.failpoints.reach("after-running")

    async def _describe(self, task: GatewayTask, intent: UpstreamJob) -> JobInput:
        request = task.spec.request
        values = await read_values(self._tools, request)
        return JobInput(
            reference=task.metadata.uid,
            upstream_model=intent.upstream_model or request.model_id,
            input=values,
            notify_url=self._tools.notify_url(task),
        )

    async def _handle(
        self, obj: Object, task: GatewayTask, attempt: Attempt, error: Exception
    ) -> bool:
        """Deals with a submission that did not come to an id; as `submit`."""
        tools, now = self._tools, time.monotonic()
        if isinstance(error, UpstreamRejected):
            await tools.fail(obj, task, Reason.GENERATION_FAILED, error.message)
            return True
        if isinstance(error, Unacceptable):
            await tools.fail(obj, task, error.reason, str(error))
            return True
        if isinstance(error, InputDamaged | ObjectMissing):
            await tools.fail(obj, task, Reason.INVALID_REQUEST, "The input can no longer be read.")
            return True
        attempt.failures += 1
        delay = min(LONGEST_PAUSE, 2.0 ** min(attempt.failures - 1, 8))
        if isinstance(error, UpstreamDenied):
            attempt.denied_since = now if attempt.denied_since is None else attempt.denied_since
            await tools.alarms.report_denial(task, error)
            if now - attempt.denied_since > DENIED_SECONDS:
                message = "The provider is not available to the gateway."
                await tools.fail(obj, task, Reason.PROVIDER_UNAVAILABLE, message)
                return True
        else:
            attempt.denied_since = None
        if isinstance(error, UpstreamBusy) and error.retry_after is not None:
            delay = error.retry_after
        attempt.due = now + delay
        tools.look_again(task, delay)
        await self._show_intent(obj, attempt)
        return False


def is_keyed(upstream: Upstream) -> bool:
    """Whether a repeated submission is the same job."""
    return upstream.guarantee is SubmissionGuarantee.IDEMPOTENCY_KEY
