"""The second step: the job is started once, whatever happens on the way.

An answer that never came is cleared up by the provider's declared means: the same idempotency key,
a look-up by reference, else its policy. Where no key protects, a call that may start a job is made
only within seconds of this process recording its intent by compare-and-set, so that an owner who
was paused finds out that he is not the owner any more. How long another's call may still be under
way is measured from when his intent was first seen here: no clock but the own one counts. An id
that was received is kept until it is recorded, whatever happens to the writes.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import structlog

from gateway_core.contract.conditions import Reason
from gateway_core.contract.task import GatewayTask, UpstreamJob
from gateway_core.domain.lifecycle import (
    record_intent,
    record_job,
    reserved_micros,
    withdraw_intent,
)
from gateway_core.ports.objects import ObjectMissing
from gateway_core.ports.records import Object, RecordOutcomeUnknown
from gateway_core.ports.upstream import (
    JobInput,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_core.usecases.inputs import InputDamaged
from gateway_operator.controllers.tasks.holds import Holds
from gateway_operator.controllers.tasks.inputs import Unacceptable, read_values
from gateway_operator.controllers.tasks.journal import Superseded
from gateway_operator.controllers.tasks.limits import Limits
from gateway_operator.controllers.tasks.tools import Tools
from gateway_operator.queue import Draining

FRESH_SECONDS = 5.0
PROVIDER_PAUSE = 3.0
LONGEST_PAUSE = 30.0
DENIED_SECONDS = 60.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    """What this process knows of its own attempts; nothing of it is needed to go on safely.

    `intent_time` is the newest intent of its own, which it began to write at `recorded_at`.
    `outcome_known` is false from the moment a call may have made a job until it is certain that it
    has not; `job_id` is an id that was received and may not be recorded yet. While `is_writing` an
    intent of its own is on its way to the record, and may be there already. `seen_intent` is the
    newest intent of anybody, in force since before `seen_at`. Until `due` the provider is left
    alone.
    """

    intent_time: str | None = None
    seen_intent: str | None = None
    seen_at: float = float("-inf")
    recorded_at: float = float("-inf")
    is_writing: bool = False
    outcome_known: bool = False
    job_id: str | None = None
    due: float = float("-inf")
    failures: int = 0
    denied_since: float | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the intent is so new that nobody can have taken the task over since."""
        return time.monotonic() - self.recorded_at <= FRESH_SECONDS

    def rules_out_job(self, intent: UpstreamJob) -> bool:
        """Whether certainly no job was made by this intent, the newest on record.

        One of another's, who has taken over meanwhile, says nothing of what he has done.
        """
        return self.outcome_known and self.intent_time == intent.intent_time

    def see(self, intent_time: str, at: float) -> None:
        """Takes note of the intent on record, which was written before `at`, or begun then."""
        if intent_time != self.seen_intent:
            self.seen_intent, self.seen_at = intent_time, at


class Submission:
    """Starts jobs."""

    def __init__(self, tools: Tools, holds: Holds, limits: Limits) -> None:
        self._tools = tools
        self._holds = holds
        self._limits = limits
        self._attempts: dict[str, _Attempt] = {}

    async def commit_intent(self, obj: Object, status: dict[str, Any]) -> None:
        """Records an intent, and that it is this process's own. Superseded if it did not land.

        A write whose acknowledgement was lost has landed all the same if it is found there. Raises
        Draining where nothing more is begun.
        """
        if self._tools.queue.is_draining:
            raise Draining
        name = obj["metadata"]["name"]
        written, begun_at = status["upstream"]["intentTime"], time.monotonic()
        attempt = self._attempts.setdefault(name, _Attempt())
        attempt.is_writing = True
        try:
            await self._tools.journal.commit(obj, status)
        except Superseded as conflict:
            newest = self._tools.live.get(name) or {}
            upstream = (newest.get("status") or {}).get("upstream") or {}
            is_unsure = isinstance(conflict.__cause__, RecordOutcomeUnknown)
            if is_unsure and upstream.get("intentTime") == written:
                self._note_intent(name, written, begun_at)
            raise
        finally:
            attempt.is_writing = False
        self._note_intent(name, written, begun_at)

    def job_of(self, name: str) -> str | None:
        """The id of a job that was received and is not recorded yet."""
        attempt = self._attempts.get(name)
        return None if attempt is None else attempt.job_id

    def has_begun(self, name: str) -> bool:
        """Whether a submission is so far that it had better be brought to its end here."""
        attempt = self._attempts.get(name)
        if attempt is None:
            return False
        is_called = attempt.intent_time is not None and not attempt.outcome_known
        is_intended = attempt.is_writing or attempt.is_fresh
        return is_called or is_intended or attempt.job_id is not None

    async def withdraw(self) -> None:
        """Takes back own intents that have led to no job, for a successor that knows nothing.

        Where no key protects he would wait out a call that nobody makes, and then perhaps give up.
        What is still being worked is left alone: it may be about to make that call.
        """
        names = [
            name
            for name, attempt in self._attempts.items()
            if attempt.outcome_known and attempt.job_id is None
            if not self._tools.queue.is_worked(name)
        ]
        await asyncio.gather(*(self._withdraw_one(name) for name in names), return_exceptions=True)

    async def _withdraw_one(self, name: str) -> None:
        obj, attempt = self._tools.live.get(name), self._attempts[name]
        job = None if obj is None else GatewayTask.model_validate(obj).status.upstream
        if obj is None or job is None or job.job_id or job.intent_time != attempt.intent_time:
            return
        upstream = await self._tools.providers.find(job.provider_name)
        if upstream is None or not _is_keyed(upstream):
            await self._tools.journal.commit(obj, withdraw_intent())

    def _note_intent(self, name: str, written: str, begun_at: float) -> None:
        attempt = self._attempts.setdefault(name, _Attempt())
        attempt.see(written, begun_at)
        attempt.intent_time, attempt.recorded_at = written, begun_at
        attempt.outcome_known = True

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s attempts."""
        self._attempts.pop(name, None)

    async def submit(self, obj: Object, task: GatewayTask) -> bool:
        """Starts the job, or finds the one that was started. Whether the task can go on at once."""
        tools, name, intent = self._tools, task.metadata.name, task.status.upstream
        assert intent is not None
        attempt = self._attempts.setdefault(name, _Attempt())
        attempt.see(intent.intent_time or "", time.monotonic())
        if attempt.job_id is not None:
            await self._record(obj, task, attempt.job_id)
            return True
        wait = attempt.due - time.monotonic()
        if wait > 0:
            tools.look_again(task, wait)
            return False
        # also where a job is only to be found: once it runs, its hold is not asked for any more
        if not await self._holds.ensure(task):
            return False
        # not where a job may have been made: what it costs would be nobody's
        held = reserved_micros(task)
        if attempt.rules_out_job(intent) and not await self._limits.enforce(obj, task, held):
            return True
        upstream = await tools.providers.find(intent.provider_name)
        if upstream is None:
            tools.look_again(task, PROVIDER_PAUSE)
            return False
        try:
            if not await self._may_start(obj, task, upstream, attempt):
                return False
            job = await self._describe(task, intent)
            if not (attempt.is_fresh or _is_keyed(upstream)):
                await self._renew_intent(obj, task)
                return False
            job_id = await self._start(task, upstream, job, attempt)
        except (UpstreamError, Unacceptable, InputDamaged, ObjectMissing) as error:
            return await self._handle(obj, task, attempt, error)
        tools.failpoints.reach("after-submit")
        await self._record(obj, task, job_id)
        return True

    async def _start(
        self, task: GatewayTask, upstream: Upstream, job: JobInput, attempt: _Attempt
    ) -> str:
        """Makes the call; its outcome is unknown until it is certain that no job was made."""
        assert task.status.upstream is not None
        known_before, attempt.outcome_known = attempt.outcome_known, False
        try:
            with self._tools.calls.watch(
                task, task.status.upstream.provider_name, "submit"
            ) as span:
                told = replace(job, traceparent=self._tools.traces.name_for_provider(span))
                job_id = await upstream.submit(told)
        except (UpstreamRejected, UpstreamBusy, UpstreamDenied):
            attempt.outcome_known = known_before
            raise
        self._check_job(task, job_id)
        attempt.job_id = job_id
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
        self, obj: Object, task: GatewayTask, upstream: Upstream, attempt: _Attempt
    ) -> bool:
        """Whether a call that may start a job is safe now.

        If not, the task has been moved on in another way, or is due later.
        """
        if _is_keyed(upstream):
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
        self.forget(task.metadata.name)
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
        self, obj: Object, task: GatewayTask, attempt: _Attempt, error: Exception
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
        return False


def _is_keyed(upstream: Upstream) -> bool:
    return upstream.guarantee is SubmissionGuarantee.IDEMPOTENCY_KEY
