"""The second step: the job is started exactly once.

A lost answer is cleared up by the provider's declared means: the same idempotency key, a look-up by
reference, else its policy. Where no key protects, a call that may start a job is made only within
seconds of this process recording its intent by compare-and-set, so that an owner who was paused
finds out that it is no longer the owner. Where the task's request names the route, another owner
may be submitting there with no intent on record: no owner submits anywhere else. How long another
owner's call may still be in flight is measured from when its intent was first seen here: no clock
but this process's own one counts. An id that was received is kept until it is recorded, even if
writes fail.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from gateway_core.api.conditions import Reason
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
from gateway_core.tasks import lifecycle
from gateway_core.tasks.archive import InputDamaged
from gateway_core.tasks.restoring import CREATE_TIME, is_made_after
from gateway_operator.accounts.credentials import Refusal
from gateway_operator.context import Context
from gateway_operator.outages import LEDGER
from gateway_operator.reconciler import AT_ONCE, Draining, Next, Superseded, WorkQueue, after
from gateway_operator.tasks.attempts import FRESH_SECONDS, Attempt, ReceivedJob, is_keyed
from gateway_operator.tasks.cache import TaskWriter
from gateway_operator.tasks.calls import Inputs, ProviderCalls
from gateway_operator.tasks.holds import LEDGER_PAUSE, Holds
from gateway_operator.tasks.waits import Waits

PROVIDER_PAUSE = 3.0
LONGEST_PAUSE = 30.0
DENIED_SECONDS = 60.0

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class Submission:
    """Starts jobs."""

    context: Context
    queue: WorkQueue
    writer: TaskWriter
    calls: ProviderCalls
    inputs: Inputs
    holds: Holds
    waits: Waits
    _attempts: dict[str, Attempt] = field(default_factory=dict, init=False)

    async def commit_intent(self, task: GatewayTask, status: dict[str, Any]) -> None:
        """Record an intent, and that it is this process's own. Superseded if it did not land.

        A write whose acknowledgement was lost has landed all the same if it is found there, now or
        by a later step. Raises Draining where nothing more is begun.
        """
        if self.queue.is_draining:
            raise Draining
        name = task.metadata.name
        written, begun_at = status["upstream"]["intentTime"], time.monotonic()
        attempt = self._attempts.setdefault(name, Attempt())
        attempt.written = written, begun_at
        try:
            await self.writer.commit(task, status)
        except Superseded as conflict:
            attempt.written = None
            newest = self.writer.cache.get(name)
            upstream = newest.status.upstream if newest is not None else None
            is_unsure = isinstance(conflict.__cause__, WriteOutcomeUnknown)
            if is_unsure and upstream is not None and upstream.intent_time == written:
                self._note_intent(name, written, begun_at)
            raise
        self._note_intent(name, written, begun_at)

    def note_created(self, name: str) -> None:
        """Note that the task was created while this process watched.

        No earlier owner has made a job; another that watches at the same time may be making one.
        """
        self._attempts.setdefault(name, Attempt(outcome_known=True))

    def hold_intent_back(self, task: GatewayTask, status: dict[str, Any]) -> None:
        """Leave an intent that the task's request names to the write of the job's id.

        Any other owner submits the task at the same place with the same key. Superseded.
        """
        self.writer.hold_back(task, status)
        attempt = self._attempts.setdefault(task.metadata.name, Attempt())
        attempt.see(status["upstream"]["intentTime"], time.monotonic())
        attempt.intent_time = status["upstream"]["intentTime"]
        attempt.recorded_at = float("-inf")

    def find_intent(self, task: GatewayTask) -> UpstreamJob | None:
        """Where a job of the task was or may have been started; None if there certainly is none."""
        route = task.spec.request.route
        if task.status.upstream is not None or route is None:
            return task.status.upstream
        if not self.holds.is_admitted(task):
            return None
        return UpstreamJob(provider_name=route.provider_name, upstream_model=route.upstream_model)

    def job_of(self, name: str) -> str | None:
        """Return the id of a job that was received and is not recorded yet."""
        attempt = self._attempts.get(name)
        return None if attempt is None or attempt.job is None else attempt.job.id

    def take_stray(self, name: str, task: GatewayTask | None) -> ReceivedJob | None:
        """Hand over a job that was received here and can no longer be recorded with the task.

        Another owner has ended the task meanwhile, or recorded another provider or job with it, or
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
        is_open = task is not None and not lifecycle.is_terminal(task)
        if is_open and (record is None or (is_there and record.job_id is None)):
            return None
        del self._attempts[name]
        return job

    def has_begun(self, name: str) -> bool:
        """Return whether a submission has come so far that it is better completed here."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return False
        is_called = attempt.intent_time is not None and not attempt.outcome_known
        is_intended = attempt.written is not None or attempt.is_fresh
        return is_called or is_intended or attempt.job is not None

    async def withdraw(self) -> None:
        """Take back own intents that have led to no job, for a successor that knows nothing.

        Where no key protects, it would wait out a call that is never made, and then perhaps fail.
        A task that is still being worked is left alone: its step may be about to make that call.
        """
        names = [
            name
            for name, attempt in self._attempts.items()
            if attempt.outcome_known and attempt.job is None
            if not self.queue.is_worked(name)
        ]
        await asyncio.gather(*(self._withdraw_one(name) for name in names), return_exceptions=True)

    async def _withdraw_one(self, name: str) -> None:
        intended = self._attempts[name].intent_time
        while (task := self.writer.cache.get(name)) is not None:
            job = task.status.upstream
            if job is None or job.job_id or job.intent_time != intended:
                return
            upstream = await self.calls.find(job.provider_name)
            if upstream is not None and is_keyed(upstream):
                return
            with suppress(Superseded):
                await self.writer.commit(task, lifecycle.withdraw_intent())
                return

    def _note_intent(self, name: str, written: str, begun_at: float) -> None:
        attempt = self._attempts.setdefault(name, Attempt())
        attempt.see(written, begun_at)
        attempt.intent_time, attempt.recorded_at = written, begun_at
        attempt.outcome_known, attempt.written = True, None

    def forget(self, name: str) -> None:
        """Drop what is known of `name`'s attempts, except a job that is not recorded yet."""
        if self.job_of(name) is None:
            self._attempts.pop(name, None)

    def note_end(self, name: str) -> None:
        """Note that the task was ended here, and its job stopped as far as possible."""
        self._attempts.pop(name, None)

    async def submit(self, task: GatewayTask) -> Next:
        """Start the job, or find the one that was started."""
        name, intent = task.metadata.name, task.status.upstream
        assert intent is not None
        attempt = self._attempts.setdefault(name, Attempt())
        if attempt.written is not None and attempt.written[0] == intent.intent_time:
            self._note_intent(name, *attempt.written)
        attempt.see(intent.intent_time or "", time.monotonic())
        if attempt.job is not None:
            return await self._record(task, attempt.job.id)
        wait = attempt.due - time.monotonic()
        if wait > 0:
            return after(wait)
        # also where a job is only to be found: once it runs, its hold is not checked any more
        if not await self.holds.ensure(task):
            await self.show_wait(task, Reason.WAITING_FOR_LEDGER, LEDGER)
            return after(LEDGER_PAUSE)
        upstream = await self.calls.find(intent.provider_name)
        may_refuse = self._may_refuse(name, attempt, intent, upstream)
        if may_refuse and not await self.holds.enforce(task, lifecycle.reserved_micros(task)):
            return AT_ONCE
        if upstream is None:
            problem = await self.calls.explain(intent.provider_name)
            await self.show_wait(task, Reason.WAITING_FOR_PROVIDER, problem)
            return after(PROVIDER_PAUSE)
        try:
            instead = await self._clear_up(task, upstream, attempt)
            if instead is not None:
                return instead
            job = await self._describe(task, intent)
            if not (attempt.is_fresh or is_keyed(upstream)):
                return await self._renew_intent(task)
            job_id = await self._start(task, upstream, job, attempt)
        except (UpstreamError, Refusal, InputDamaged, ObjectMissing) as error:
            return await self._handle(task, attempt, error)
        self.context.failpoints.reach("after-submit")
        return await self._record(task, job_id)

    def _may_refuse(
        self, name: str, attempt: Attempt, intent: UpstreamJob, upstream: Upstream | None
    ) -> bool:
        """Return whether the task may fail by a limit: a job of a failed task is not charged.

        An intent that was held back does not stop another owner. Once it is on record, the other
        owner's write does not land, and it decides anew; its call gets the time that it takes.
        """
        if attempt.rules_out_job(intent):
            return True
        if upstream is None or self.writer.cache.is_unwritten(name):
            return False
        waited = time.monotonic() - attempt.seen_at
        return attempt.knows_outcome(intent) and waited > FRESH_SECONDS + upstream.submit_seconds

    async def show_wait(
        self,
        task: GatewayTask,
        reason: Reason,
        text: str,
        *,
        is_answer: bool = False,
        until: datetime | None = None,
    ) -> None:
        """Show what the task waits for; also writes an intent that was held back. Superseded."""
        name = task.metadata.name
        was_unwritten = self.writer.cache.is_unwritten(name)
        await self.waits.show(task, reason, text, is_answer=is_answer, until=until)
        attempt = self._attempts.get(name)
        if attempt is not None and was_unwritten and not self.writer.cache.is_unwritten(name):
            attempt.seen_at = time.monotonic()

    async def _start(
        self, task: GatewayTask, upstream: Upstream, job: JobInput, attempt: Attempt
    ) -> str:
        """Make the call; its outcome is unknown until it is certain that no job was made."""
        assert task.status.upstream is not None
        provider = task.status.upstream.provider_name
        # false before the call, not after it: a step that is cancelled in between must not forget
        # that a job may have been started
        known_before, attempt.outcome_known = attempt.outcome_known, False
        attempt.written = None
        try:
            with self.calls.watch(task, provider, "submit") as span:
                traceparent = self.calls.traces.name_for_provider(span)
                job_id = await upstream.submit(replace(job, traceparent=traceparent))
        except (UpstreamRejected, UpstreamBusy, UpstreamDenied):
            attempt.outcome_known = known_before
            raise
        self._check_job(task, job_id)
        attempt.job = ReceivedJob(job_id, provider, task)
        # another owner may have ended the task during the call, and the attempt be forgotten since
        self._attempts[task.metadata.name] = attempt
        return job_id

    def _check_job(self, task: GatewayTask, job_id: str) -> None:
        """Raise UpstreamUnclear where another task has a job of that id.

        If a provider gives one id to two tasks, one of them would take the other's output, perhaps
        another account's: it is unknown which task the job belongs to.
        """
        assert task.status.upstream is not None
        provider, name = task.status.upstream.provider_name, task.metadata.name
        if not self.writer.cache.claim_job(provider, job_id, name):
            _log.error("a provider gave one id to two tasks", object=name, provider=provider)
            raise UpstreamUnclear("The provider gave an id that another task's job has.")

    async def _clear_up(
        self, task: GatewayTask, upstream: Upstream, attempt: Attempt
    ) -> Next | None:
        """Return the next step if a call that may start a job is not safe now, else None.

        Another owner's call, or an own one with an unknown outcome, may have started a job.
        """
        assert task.status.upstream is not None
        intended = task.status.upstream.intent_time
        # under the new uid of a restored task the provider neither finds a job nor knows the key
        is_restored = intended is not None and is_made_after(task.source, intended, CREATE_TIME)
        if is_keyed(upstream) and not is_restored:
            return None
        if attempt.rules_out_job(task.status.upstream):
            return None if attempt.is_fresh else await self._renew_intent(task)
        can_find = upstream.guarantee is SubmissionGuarantee.LOOKUP and not is_restored
        if can_find:
            with self.calls.watch(task, task.status.upstream.provider_name, "find"):
                job_id = await upstream.find(task.metadata.uid)
            if job_id is not None:
                self._check_job(task, job_id)
                return await self._record(task, job_id)
        wait = attempt.seen_at + FRESH_SECONDS + upstream.submit_seconds - time.monotonic()
        if wait > 0:
            return after(wait)
        if can_find or upstream.resubmits_unknown:
            return await self._renew_intent(task)
        message = "It is unknown whether the provider took the job; it was not submitted again."
        await self.writer.fail(task, Reason.SUBMISSION_UNKNOWN, message)
        return AT_ONCE

    async def _renew_intent(self, task: GatewayTask) -> Next:
        intent = task.status.upstream
        assert intent is not None
        status = lifecycle.record_intent(
            task,
            provider=intent.provider_name,
            upstream_model=intent.upstream_model or "",
            reserved=lifecycle.reserved_micros(task),
            now=self.context.now(),
        )
        await self.commit_intent(task, status)
        return AT_ONCE

    async def _record(self, task: GatewayTask, job_id: str) -> Next:
        context = self.context
        await self.writer.commit(task, lifecycle.record_job(task, job_id, context.now()))
        assert task.status.upstream is not None
        text = f"job {job_id} at provider {task.status.upstream.provider_name}"
        context.events.info(task.source, reason="Submitted", message=text)
        context.metrics.submit_delay.observe(max(0.0, context.age(task)))
        self._attempts.pop(task.metadata.name, None)
        context.failpoints.reach("after-running")
        return AT_ONCE

    async def _describe(self, task: GatewayTask, intent: UpstreamJob) -> JobInput:
        request = task.spec.request
        return JobInput(
            reference=task.metadata.uid,
            upstream_model=intent.upstream_model or request.model_id,
            input=await self.inputs.read(request),
            notify_url=self.calls.notify_url(task),
        )

    async def _handle(self, task: GatewayTask, attempt: Attempt, error: Exception) -> Next:
        """Return the next step after a submission that did not come to an id."""
        now = time.monotonic()
        failure: tuple[Reason, str] | None = None
        until: datetime | None = None
        if isinstance(error, UpstreamRejected):
            failure = Reason.GENERATION_FAILED, error.message
        elif isinstance(error, Refusal):
            failure = error.reason, str(error)
        elif isinstance(error, InputDamaged | ObjectMissing):
            failure = Reason.INVALID_REQUEST, "The input can no longer be read."
        elif isinstance(error, UpstreamDenied):
            attempt.denied_since = now if attempt.denied_since is None else attempt.denied_since
            await self.context.events.report_denial(task, error)
            left = DENIED_SECONDS - (now - attempt.denied_since)
            until = self.context.now() + timedelta(seconds=left)
            if left < 0:
                message = "The provider is not available to the gateway."
                failure = Reason.PROVIDER_UNAVAILABLE, message
        else:
            attempt.denied_since = None
        if failure is not None:
            await self.writer.fail(task, *failure)
            return AT_ONCE
        attempt.failures += 1
        delay = min(LONGEST_PAUSE, 2.0 ** min(attempt.failures - 1, 8))
        if isinstance(error, UpstreamBusy) and error.retry_after is not None:
            delay = error.retry_after
        attempt.due = now + delay
        intent = task.status.upstream
        provider = intent.provider_name if intent is not None else ""
        text = f"provider {provider}: {error}"
        await self.show_wait(task, Reason.WAITING_FOR_PROVIDER, text, is_answer=True, until=until)
        return after(delay)
