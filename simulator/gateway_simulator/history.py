"""What callers did, for tests to check afterwards; kept by `provider`, shown by `control`.

After a restart it holds the first submission of every job in the journal: that is enough to
check that a client reference has one job. Replays, polls and cancels before the restart are gone.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway_simulator.jobs import Job, format_time

PROMPT_PREFIX = 80

LONGEST_NAME = 200
"""Characters; a longer input is remembered by its beginning and a digest of the whole."""


@dataclass(slots=True)
class Submission:
    """One POST of a well-formed job: `job_id` and `replay` are None where none was recorded."""

    at: float
    idempotency_key: str | None
    client_reference: str | None
    prompt_prefix: str
    job_id: str | None = None
    replay: bool | None = None

    def describe(self) -> dict[str, Any]:
        """Return the submission as /control/history shows it."""
        return {**asdict(self), "at": format_time(self.at)}


@dataclass(slots=True)
class AskedInput:
    """How often an input came in and how often it was judged; times in epoch seconds."""

    asked: int
    answered: int
    first_at: float
    last_at: float


@dataclass(slots=True)
class ModerationHistory:
    """Every call and each of its inputs since the start or the last `clear`."""

    calls: int = 0
    answered: int = 0
    _inputs: dict[str, AskedInput] = field(default_factory=dict)

    def note_call(self, at: float, contents: Iterable[str]) -> list[AskedInput]:
        """Record that a well-formed call came in; `note_answer` takes what is returned."""
        self.calls += 1
        touched = list[AskedInput]()
        for content in contents:
            name = _name(content)
            known = self._inputs.get(name)
            if known is None:
                known = self._inputs[name] = AskedInput(0, 0, at, at)
            known.asked += 1
            known.last_at = at
            touched.append(known)
        return touched

    def note_answer(self, touched: Iterable[AskedInput]) -> None:
        """Record that a call was judged; its answer may get lost all the same."""
        self.answered += 1
        for each in touched:
            each.answered += 1

    def clear(self) -> None:
        """Forget all."""
        self.calls = self.answered = 0
        self._inputs = {}

    def describe(self) -> dict[str, Any]:
        """Return the counts as /control/history shows them."""
        return {"calls": self.calls, "answered": self.answered, "inputs": len(self._inputs)}

    def list_inputs(self, contains: str, least: int) -> dict[str, dict[str, Any]]:
        """Return the inputs in order of their first call, those of at least `least` calls."""
        return {
            name: {
                **asdict(each),
                "first_at": format_time(each.first_at),
                "last_at": format_time(each.last_at),
            }
            for name, each in self._inputs.items()
            if each.asked >= least and contains in name
        }


@dataclass(slots=True)
class GenerationHistory:
    """Answers of language models since the start or the last `clear`.

    `completed` were written to their end, `aborted` were left by their caller, and those that are
    in neither are under way, or broken by a rule.
    """

    calls: int = 0
    completed: int = 0
    aborted: int = 0


@dataclass(slots=True)
class History:
    """Everything since the start or the last `clear`."""

    submissions: list[Submission] = field(default_factory=list)
    cancels: list[dict[str, Any]] = field(default_factory=list)
    moderations: ModerationHistory = field(default_factory=ModerationHistory)
    generations: GenerationHistory = field(default_factory=GenerationHistory)
    jobs: int = 0
    polls: int = 0
    requests_under_way: int = 0
    peak_requests: int = 0

    def note_submission(
        self, at: float, key: str | None, reference: str | None, prompt: str
    ) -> Submission:
        """Record that a submission arrived; the caller fills in what came of it."""
        submission = Submission(at, key, reference, prompt[:PROMPT_PREFIX])
        self.submissions.append(submission)
        return submission

    def note_job(self, submission: Submission, job: Job, *, replay: bool) -> None:
        """Record which job a submission led to."""
        submission.job_id, submission.replay = job.id, replay
        if not replay:
            self.jobs += 1

    def note_cancel(self, at: float, job: Job, *, cancelled: bool) -> None:
        """Record a request to cancel a job and whether it did."""
        self.cancels.append({"at": format_time(at), "job_id": job.id, "cancelled": cancelled})

    def begin_request(self) -> None:
        """Count a /v1 request that is now under way."""
        self.requests_under_way += 1
        self.peak_requests = max(self.peak_requests, self.requests_under_way)

    def end_request(self) -> None:
        """Count off a /v1 request that has been answered."""
        self.requests_under_way -= 1

    def restore(self, job: Job) -> None:
        """Record the first submission of a job that was loaded from the journal."""
        request = job.request
        submission = self.note_submission(
            job.created_at, job.key, request.client_reference, request.prompt
        )
        self.note_job(submission, job, replay=False)

    def clear(self) -> None:
        """Forget all but the requests that are under way."""
        self.submissions.clear()
        self.cancels.clear()
        self.moderations.clear()
        self.generations = GenerationHistory()
        self.jobs = self.polls = 0
        self.peak_requests = self.requests_under_way

    def describe(self) -> dict[str, Any]:
        """Return the whole as /control/history shows it."""
        return {
            "submissions": [submission.describe() for submission in self.submissions],
            "jobs": self.jobs,
            "polls": self.polls,
            "cancels": self.cancels,
            "moderations": self.moderations.describe(),
            "generations": asdict(self.generations),
            "peak_requests": self.peak_requests,
        }


def _name(content: str) -> str:
    if len(content) <= LONGEST_NAME:
        return content
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{content[:LONGEST_NAME]}…{digest[:16]}"
