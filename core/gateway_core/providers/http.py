"""Upstream provider called over HTTP as its resource declares (`GatewayProvider`, type http)."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from gateway_core.api.http_provider import StateWords
from gateway_core.api.provider import ProviderSpec
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.clock import CLOCK
from gateway_core.providers.checks import check_provider
from gateway_core.providers.http_answers import (
    FAILED,
    REFUSED,
    Answer,
    ErrorReader,
    JobFinder,
    evaluate,
    find_question_error,
    find_submission_error,
    parse_retry_after,
    read_job_id,
    read_outputs,
    read_seconds,
    read_word,
)
from gateway_core.providers.http_calls import (
    SLOT_SECONDS,
    Call,
    CallPlan,
    Connections,
    compile_calls,
    decode_credential,
    fill_headers,
    make_slots,
    read_body,
)
from gateway_core.providers.outputs import OutputRules, OutputSource
from gateway_core.providers.redaction import MessageCleaner
from gateway_core.providers.templates import Expression, ExpressionError
from gateway_core.providers.upstream import (
    Download,
    JobInput,
    JobReport,
    JobState,
    SubmissionGuarantee,
    Upstream,
    UpstreamBusy,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)

_MAX_ANSWER = 1024 * 1024
_SUBMIT_MARGIN = 10
"""Seconds after the time-out in which a request may still be on its way to the provider."""
_CUT = "The connection to the provider broke off or timed out."


class HttpUpstream(Upstream):
    """Upstream for a resource of type http.

    `credential` is the value of the resource's Secret. Raises ValueError, saying what to correct,
    where the resource or the credential is invalid.
    """

    def __init__(
        self, spec: ProviderSpec, credential: bytes | str | None, policy: AddressPolicy
    ) -> None:
        problems = check_provider(spec)
        if problems or spec.http is None:
            raise ValueError("; ".join(problem.text for problem in problems) or "http: is missing")
        http = spec.http
        secret = decode_credential(credential)
        self._plans = compile_calls(http, secret)
        self._job_id = Expression(http.submit.job_id)
        self._refusal = _compile(http.submit.error_message)
        self._state = Expression(http.poll.state)
        self._words = _map_words(http.poll.state_words)
        self._result_id = _compile(http.poll.result_id)
        self._output_urls = Expression(http.poll.outputs)
        self._seconds = _compile(http.poll.output_seconds)
        self._failure = _compile(http.poll.error_message)
        self._late_failure = _compile(http.result.error_message if http.result else None)
        self._finder = JobFinder(http.lookup) if http.lookup else None
        self._errors = ErrorReader(http.errors)
        self._key_header = http.submit.idempotency_header
        rules = OutputRules(http)
        headers = [*(http.headers or ()), *(http.output_headers or ())]
        values = fill_headers(headers, secret).values()
        self._cleaner = MessageCleaner(rules.hosts, [secret] if secret else (), values)
        limit = spec.max_concurrent_requests
        self._connections = Connections(policy, limit=limit, timeout=http.request_timeout_seconds)
        self._outputs = OutputSource(
            rules, self._connections, fill_headers(http.output_headers, secret)
        )
        self._slots = make_slots(limit)
        self.max_output_bytes = http.max_output_bytes
        self.can_cancel = http.cancel is not None
        self.can_find = http.lookup is not None
        self.submit_seconds = SLOT_SECONDS + http.request_timeout_seconds + _SUBMIT_MARGIN
        if http.lookup:
            self.submit_seconds += http.lookup.visible_after_seconds
        self.resubmits_unknown = spec.on_unknown_submission == "Resubmit"
        self.poll_interval = (
            float(http.poll.min_interval_seconds),
            float(http.poll.max_interval_seconds),
        )
        notified = http.poll.notified_interval_seconds
        self.notified_interval = None if notified is None else float(notified)
        if self._key_header:
            self.guarantee = SubmissionGuarantee.IDEMPOTENCY_KEY
        else:
            self.guarantee = (
                SubmissionGuarantee.LOOKUP if self.can_find else SubmissionGuarantee.NONE
            )

    async def submit(self, job: JobInput) -> str:
        """Start a job; its id. UpstreamRejected, Busy, Denied, Unclear."""
        values = {"model": job.upstream_model, "reference": job.reference}
        extra = {self._key_header.lower(): job.reference} if self._key_header else {}
        if job.traceparent is not None:
            extra["traceparent"] = job.traceparent
        document = {**values, "input": job.input, "notifyUrl": job.notify_url}
        try:
            call = self._plans.submit.fill(values, document, **extra)
        except (ValueError, TypeError) as error:
            raise UpstreamRejected("The input does not fit the provider's request.") from error
        answer = await self._send(call, self._connections.submissions)
        problem = self._errors.find(answer)
        problem = problem or find_submission_error(answer, keyed=self._key_header is not None)
        if isinstance(problem, UpstreamRejected) or (problem is None and not answer.ok):
            raise UpstreamRejected(self._explain(answer))
        if problem:
            raise problem
        return read_job_id(evaluate(self._job_id, answer.parse()))

    async def find(self, reference: str) -> str | None:
        """Return the id of the job submitted under `reference`, None if the provider has none.

        Raises UpstreamUnclear for a provider without a look-up.
        """
        if self._plans.lookup is None or self._finder is None:
            raise UpstreamUnclear("The provider has no look-up.")
        try:
            answer = await self._ask(self._plans.lookup, {"reference": reference})
        except UpstreamGone:
            return None
        return self._finder.find(answer.parse(), reference)

    async def poll(self, job_id: str) -> JobReport:
        """State of a job. UpstreamGone, Busy, Denied, Unclear."""
        values = {"jobId": job_id}
        answer = await self._ask(self._plans.poll, values)
        document = answer.parse()
        word = read_word(evaluate(self._state, document))
        state = self._words.get(word, JobState.RUNNING)
        if state is JobState.SUCCEEDED:
            return await self._report_end(values, document)
        if state is JobState.RUNNING:
            return JobReport(state, retry_after=answer.retry_after)
        message = self._clean(self._failure, document, FAILED, job_id)
        return JobReport(state, message=message)

    async def cancel(self, job_id: str) -> None:
        """Stop a job; no error where it has ended or is unknown. Busy, Denied, Unclear.

        Raises UpstreamUnclear for a provider that cannot stop jobs.
        """
        if self._plans.cancel is None:
            raise UpstreamUnclear("The provider cannot stop jobs.")
        answer = await self._send_filled(self._plans.cancel, {"jobId": job_id})
        problem = self._find_problem(answer)
        if problem and not isinstance(problem, UpstreamGone) and answer.status != 409:
            raise problem

    def fetch(self, url: str) -> AbstractAsyncContextManager[Download]:
        """Open an output for reading. OutputRejected, UpstreamGone, Busy, Unclear."""
        return self._outputs.open(url)

    async def close(self) -> None:
        """Close connections."""
        await self._connections.close()

    async def _report_end(self, values: Mapping[str, str], document: Any) -> JobReport:
        """Return the outputs of a job that succeeded by `poll`, or the failure at its result."""
        if self._plans.result:
            if self._result_id:
                found = read_job_id(evaluate(self._result_id, document))
                values = {**values, "resultId": found}
            answer = await self._send_filled(self._plans.result, values)
            if self._tells_failure(answer):
                message = self._clean(self._late_failure, answer.parse(), FAILED, values["jobId"])
                return JobReport(JobState.FAILED, message=message)
            if problem := self._find_problem(answer):
                raise problem
            document = answer.parse()
        outputs = read_outputs(evaluate(self._output_urls, document))
        seconds = evaluate(self._seconds, document) if self._seconds else None
        return JobReport(JobState.SUCCEEDED, outputs, read_seconds(seconds))

    def _tells_failure(self, answer: Answer) -> bool:
        """Return whether the response to `result` says that the job failed."""
        if self._late_failure is None:
            return False
        try:
            return self._late_failure.evaluate(answer.parse()) is not None
        except (ExpressionError, UpstreamUnclear):
            return False  # no JSON, or of another shape: its status decides

    async def _ask(self, plan: CallPlan, values: Mapping[str, str]) -> Answer:
        answer = await self._send_filled(plan, values)
        problem = self._find_problem(answer)
        if problem:
            raise problem
        return answer

    def _find_problem(self, answer: Answer) -> UpstreamError | None:
        """Error of a poll, look-up or cancellation; a rejection of one is inconclusive."""
        problem = self._errors.find(answer)
        if isinstance(problem, UpstreamRejected):
            return UpstreamUnclear("The provider refused to tell.")
        return problem or find_question_error(answer)

    async def _send_filled(self, plan: CallPlan, values: Mapping[str, str]) -> Answer:
        try:
            call = plan.fill(values)
        except (ValueError, TypeError) as error:
            raise UpstreamUnclear("The job's id does not fit the provider's request.") from error
        return await self._send(call, self._connections.calls)

    async def _send(self, call: Call, session: aiohttp.ClientSession) -> Answer:
        """Return the whole response. UpstreamBusy where the call was not sent, else Unclear."""
        async with self._slots.take(None):
            try:
                async with session.request(
                    call.method,
                    call.url,
                    data=call.body,
                    headers={"accept": "application/json", **call.headers},
                    allow_redirects=False,
                ) as response:
                    body = await read_body(response, _MAX_ANSWER)
                    wait = parse_retry_after(response.headers.get("Retry-After"), CLOCK.time())
                    return Answer(response.status, body, wait)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                raise UpstreamBusy("The provider could not be reached.") from error
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                raise UpstreamUnclear(_CUT) from error

    def _explain(self, answer: Answer) -> str:
        """Why the provider rejected the input, redacted."""
        try:
            document = answer.parse()
        except UpstreamUnclear:
            return REFUSED
        return self._clean(self._refusal, document, REFUSED)

    def _clean(self, expression: Expression | None, document: Any, fallback: str, *ids: str) -> str:
        try:
            raw = expression.evaluate(document) if expression else None
        except ExpressionError:
            raw = None
        return self._cleaner.clean(raw, fallback, *ids)


def _compile(text: str | None) -> Expression | None:
    return None if text is None else Expression(text)


def _map_words(words: StateWords) -> dict[str, JobState]:
    return {
        **dict.fromkeys(words.succeeded, JobState.SUCCEEDED),
        **dict.fromkeys(words.failed, JobState.FAILED),
        **dict.fromkeys(words.cancelled or (), JobState.CANCELLED),
    }
