"""The second step: the job is started once, whatever happens on the way.

An answer that never came is cleared up by the provider's declared means: the same idempotency key,
a look-up by reference, else its policy. Where neither key nor look-up protects, a call that may
start a job is made only right after this process has recorded its intent by compare-and-set, so
that an owner who was paused finds out that he is not the owner any more.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

from gateway_core.contract.conditions import Reason
from gateway_core.contract.provider import GatewayProvider
from gateway_core.contract.task import GatewayTask, UpstreamJob
from gateway_core.domain.lifecycle import (
    parse_time,
    record_intent,
    record_job,
    reserved_micros,
)
from gateway_core.ports.objects import ObjectMissing
from gateway_core.ports.records import Missing, Object
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
from gateway_core.usecases.inputs import InputDamaged, load_input
from gateway_operator.controllers.tasks.intake import Unacceptable, check_request
from gateway_operator.controllers.tasks.tools import Tools

FRESH_SECONDS = 5.0
PROVIDER_PAUSE = 3.0
LONGEST_PAUSE = 30.0
DENIED_SECONDS = 60.0


@dataclass(slots=True)
class _Attempt:
    """What this process knows of its own attempts; nothing of it is needed to go on safely."""

    recorded_at: float
    outcome_known: bool = True
    failures: int = 0
    denied_since: float | None = None


class Submission:
    """Starts jobs."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._attempts: dict[str, _Attempt] = {}
        self._last_alarm: dict[str, float] = {}

    def note_intent(self, name: str) -> None:
        """Takes note that this process has just recorded the intent of `name`."""
        self._attempts[name] = _Attempt(recorded_at=time.monotonic())

    def forget(self, name: str) -> None:
        """Drops what is known of `name`'s attempts."""
        self._attempts.pop(name, None)

    async def submit(self, obj: Object, task: GatewayTask) -> bool:
        """Starts the job, or finds the one that was started. Whether the task can go on at once."""
        tools, name, intent = self._tools, task.metadata.name, task.status.upstream
        assert intent is not None
        upstream = await tools.providers.find(intent.provider_name)
        if upstream is None:
            tools.queue.add_after(name, PROVIDER_PAUSE)
            return False
        try:
            if not await self._may_start(obj, task, upstream):
                return False
            job = await self._describe(task, intent)
            job_id = await upstream.submit(job)
        except (UpstreamError, Unacceptable, InputDamaged, ObjectMissing) as error:
            tools.metrics.count_call(intent.provider_name, "submit", type(error).__name__)
            return await self._handle(obj, task, error)
        tools.metrics.count_call(intent.provider_name, "submit", "ok")
        tools.failpoints.reach("after-submit")
        await self._record(obj, task, job_id)
        return True

    async def _may_start(self, obj: Object, task: GatewayTask, upstream: Upstream) -> bool:
        """Whether a call that may start a job is safe now.

        If not, the task has been moved on in another way, or is due later.
        """
        if upstream.guarantee is SubmissionGuarantee.IDEMPOTENCY_KEY:
            return True
        attempt = self._attempts.get(task.metadata.name)
        if attempt and attempt.outcome_known:
            if time.monotonic() - attempt.recorded_at <= FRESH_SECONDS:
                return True
            await self._renew_intent(obj, task)
            return False
        if upstream.guarantee is SubmissionGuarantee.LOOKUP:
            job_id = await upstream.find(task.metadata.uid)
            if job_id is not None:
                await self._record(obj, task, job_id)
                self._tools.queue.add(task.metadata.name)
                return False
        assert task.status.upstream is not None
        written = parse_time(task.status.upstream.intent_time)
        under_way = timedelta(seconds=FRESH_SECONDS + upstream.submit_seconds)
        wait = written + under_way - self._tools.now()
        if wait > timedelta(0):
            self._tools.queue.add_after(task.metadata.name, wait.total_seconds())
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
        await self._tools.journal.commit(obj, status)
        self.note_intent(task.metadata.name)
        self._tools.queue.add(task.metadata.name)

    async def _record(self, obj: Object, task: GatewayTask, job_id: str) -> None:
        await self._tools.journal.commit(obj, record_job(task, job_id, self._tools.now()))
        self.forget(task.metadata.name)
        self._tools.failpoints.reach("after-running")

    async def _describe(self, task: GatewayTask, intent: UpstreamJob) -> JobInput:
        request = task.spec.request
        values = await load_input(self._tools.store, request)
        if request.fingerprint is None:  # made with kubectl: defaults are not in it yet
            _, values = check_request(self._tools.catalog(), request, values)
            values = {k: v for k, v in values.items() if k not in ("model", "callback_url")}
        return JobInput(
            reference=task.metadata.uid,
            upstream_model=intent.upstream_model or request.model_id,
            input=values,
        )

    async def _handle(self, obj: Object, task: GatewayTask, error: Exception) -> bool:
        """Deals with a submission that did not come to an id; as `submit`."""
        tools, name = self._tools, task.metadata.name
        if isinstance(error, UpstreamRejected):
            await tools.fail(obj, task, Reason.GENERATION_FAILED, error.message)
            return True
        if isinstance(error, (Unacceptable, InputDamaged, ObjectMissing)):
            await tools.fail(obj, task, Reason.INVALID_REQUEST, "The input can no longer be read.")
            return True
        attempt = self._attempts.setdefault(name, _Attempt(time.monotonic(), outcome_known=False))
        attempt.failures += 1
        delay = min(LONGEST_PAUSE, 2.0 ** min(attempt.failures - 1, 8))
        if isinstance(error, UpstreamUnclear):
            attempt.outcome_known = False
        elif isinstance(error, UpstreamDenied):
            attempt.denied_since = attempt.denied_since or time.monotonic()
            await self._alarm(task, error)
            if time.monotonic() - attempt.denied_since > DENIED_SECONDS:
                message = "The provider is not available to the gateway."
                await tools.fail(obj, task, Reason.PROVIDER_UNAVAILABLE, message)
                return True
        elif isinstance(error, UpstreamBusy) and error.retry_after is not None:
            delay = error.retry_after
        tools.queue.add_after(name, delay)
        return False

    async def _alarm(self, task: GatewayTask, error: UpstreamDenied) -> None:
        """Tells admins, once in ten minutes, that a provider refuses the gateway's credentials."""
        assert task.status.upstream is not None
        provider = task.status.upstream.provider_name
        if time.monotonic() - self._last_alarm.get(provider, float("-inf")) < 600:
            return
        self._last_alarm[provider] = time.monotonic()
        try:
            obj = await self._tools.records.get(GatewayProvider.plural, provider)
        except Missing:
            return
        await self._tools.records.report_event(
            obj, reason="CredentialsRefused", message=error.message
        )
