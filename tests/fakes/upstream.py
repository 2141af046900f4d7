"""`Upstream` with a provider behind it that outlives the operator, and does what a test says.

A call that has reached the provider takes effect there, whatever becomes of the caller.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from gateway_core.providers.upstream import (
    Download,
    JobInput,
    JobReport,
    JobState,
    SubmissionGuarantee,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from tests.fakes.clock import run_to_end

A = TypeVar("A")
T = TypeVar("T")


class Outcome(Enum):
    """What a submission comes to."""

    OK = "ok"
    BUSY = "busy"
    DENIED = "denied"
    REJECTED = "rejected"
    UNCLEAR_WITH_JOB = "the answer is lost"
    UNCLEAR_WITHOUT_JOB = "the request is lost"


@dataclass
class Job:
    """A job at the provider."""

    id: str
    reference: str
    input: dict[str, Any]
    begun: float
    cancelled: bool = False


@dataclass(eq=False)
class FakeUpstream:
    """A provider. Scripts are played first; afterwards everything goes well.

    `submissions` holds outcomes, `polls`, `finds`, `cancels` and `fetches` errors to raise or, for
    polls, reports to give. `seconds` is how long a job takes, `latency` how long a call does.
    """

    guarantee: SubmissionGuarantee = SubmissionGuarantee.IDEMPOTENCY_KEY
    can_cancel: bool = True
    can_find: bool = False
    max_output_bytes: int = 1000
    submit_seconds: float = 12.0
    resubmits_unknown: bool = False
    poll_interval: tuple[float, float] = (1.0, 15.0)
    notified_interval: float | None = None
    seconds: float = 2.0
    latency: float = 0.02
    made_seconds: float | None = None
    outputs: tuple[str, ...] = ("https://provider.example/out.mp4",)
    content: bytes = b"a video"
    submissions: deque[Outcome] = field(default_factory=deque)
    polls: deque[Exception | JobReport] = field(default_factory=deque)
    finds: deque[Exception] = field(default_factory=deque)
    cancels: deque[Exception] = field(default_factory=deque)
    fetches: deque[Exception] = field(default_factory=deque)
    retry_after: float | None = None
    away: bool = False
    problem: str | None = None
    start_error: Exception | None = None

    def __post_init__(self) -> None:
        self.jobs: list[Job] = []
        self.submitted: list[JobInput] = []
        self.calls: list[tuple[str, float]] = []
        self.closed = False
        if self.guarantee is SubmissionGuarantee.LOOKUP:
            self.can_find = True

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    def times(self, call: str) -> list[float]:
        return [at for name, at in self.calls if name == call]

    async def start(self) -> None:
        if self.problem is not None:
            raise ValueError(self.problem)
        if self.start_error is not None:
            raise self.start_error

    async def submit(self, job: JobInput) -> str:
        return await self._serve("submit", self._submit, job)

    async def find(self, reference: str) -> str | None:
        return await self._serve("find", self._find, reference)

    async def poll(self, job_id: str) -> JobReport:
        return await self._serve("poll", self._poll, job_id)

    async def cancel(self, job_id: str) -> None:
        await self._serve("cancel", self._cancel, job_id)

    @asynccontextmanager
    async def fetch(self, url: str) -> AsyncIterator[Download]:
        self._note("fetch")
        if self.fetches:
            raise self.fetches.popleft()
        yield Download("video/mp4", self._read())

    async def close(self) -> None:
        self.closed = True

    async def _serve(self, call: str, work: Callable[[A], Awaitable[T]], argument: A) -> T:
        async def serve() -> T:
            await asyncio.sleep(self.latency / 2)
            self._note(call)
            try:
                return await work(argument)
            finally:
                await asyncio.sleep(self.latency / 2)

        return await run_to_end(serve)

    def _note(self, call: str) -> None:
        self.calls.append((call, asyncio.get_running_loop().time()))

    async def _submit(self, job: JobInput) -> str:
        self.submitted.append(job)
        outcome = self.submissions.popleft() if self.submissions else Outcome.OK
        if self.away or outcome is Outcome.BUSY:
            raise UpstreamBusy("The provider is busy.", retry_after=self.retry_after)
        if outcome is Outcome.DENIED:
            raise UpstreamDenied("The provider refused the gateway's credentials.")
        if outcome is Outcome.REJECTED:
            raise UpstreamRejected("The prompt is not allowed.")
        if outcome is Outcome.UNCLEAR_WITHOUT_JOB:
            raise UpstreamUnclear("The connection broke off.")
        made = self._find_job(job.reference)
        if made is None or self.guarantee is not SubmissionGuarantee.IDEMPOTENCY_KEY:
            now = asyncio.get_running_loop().time()
            made = Job(f"job_{len(self.jobs)}", job.reference, job.input, now)
            self.jobs.append(made)
        if outcome is Outcome.UNCLEAR_WITH_JOB:
            raise UpstreamUnclear("The connection broke off.")
        return made.id

    async def _find(self, reference: str) -> str | None:
        if self.finds:
            raise self.finds.popleft()
        found = self._find_job(reference)
        return found.id if found else None

    async def _poll(self, job_id: str) -> JobReport:
        if self.away:
            raise UpstreamUnclear("The connection broke off.")
        if self.polls:
            scripted = self.polls.popleft()
            if isinstance(scripted, Exception):
                raise scripted
            return scripted
        job = next((job for job in self.jobs if job.id == job_id), None)
        if job is None:
            raise UpstreamGone("The provider does not know the job.")
        if job.cancelled:
            return JobReport(JobState.CANCELLED)
        if asyncio.get_running_loop().time() - job.begun < self.seconds:
            return JobReport(JobState.RUNNING)
        return JobReport(JobState.SUCCEEDED, self.outputs, self.made_seconds)

    async def _cancel(self, job_id: str) -> None:
        if self.cancels:
            raise self.cancels.popleft()
        if self.away:
            raise UpstreamUnclear("The connection broke off.")
        for job in self.jobs:
            job.cancelled = job.cancelled or job.id == job_id

    def _find_job(self, reference: str) -> Job | None:
        return next((job for job in self.jobs if job.reference == reference), None)

    async def _read(self) -> AsyncIterator[bytes]:
        yield self.content
