"""What the provider does with a request, free of HTTP: submit, poll, look up, cancel.

Used by `routes`. The behaviours that change a job, or what is shown of it, are applied here.
"""

from collections.abc import Callable
from typing import Any

from gateway_simulator.behaviours import (
    Contradict,
    DuplicateId,
    Fail,
    ForeignOutput,
    IgnoreIdempotency,
    LoseJob,
    Point,
    Seconds,
    Spread,
    Stall,
)
from gateway_simulator.history import History, Submission
from gateway_simulator.jobs import Job, JobRequest, Plan, State
from gateway_simulator.ledger import Ledger
from gateway_simulator.rulebook import Rulebook


class Provider:
    """The provider; `seconds` is how long a job takes by default, `clock` gives epoch seconds."""

    def __init__(self, ledger: Ledger, seconds: Spread, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self.rulebook = Rulebook()
        self.history = History()
        self.clock = clock
        self._seconds = seconds
        for job in ledger:
            self.history.restore(job)

    def submit(self, request: JobRequest, submission: Submission) -> tuple[Job, bool]:
        """Make a job, or find the one of the same idempotency key.

        Return the job to show and whether it is a replay; complete the history's `submission`.
        """
        prompts = (request.prompt,)
        key = submission.idempotency_key
        known = self.ledger.get_by_key(key) if key is not None else None
        if known and not self.rulebook.take(IgnoreIdempotency, Point.SUBMIT, prompts):
            self.history.note_job(submission, known, replay=True)
            return known, True
        job = self.ledger.add(request, key, self._plan(request))
        self.history.note_job(submission, job, replay=False)
        if self.rulebook.take(LoseJob, Point.SUBMIT, prompts):
            self.ledger.lose(job)
        rule = self.rulebook.take(
            DuplicateId,
            Point.SUBMIT,
            prompts,
            accept=lambda rule: self._find_before(job, rule) is not None,
        )
        return (job if rule is None else self._find_before(job, rule) or job), False

    def _find_before(self, job: Job, rule: DuplicateId) -> Job | None:
        """Return the last earlier job whose prompt the rule matches, the only one affected."""
        wanted = rule.match.prompt_contains or ""
        earlier = (each for each in reversed(self.ledger) if each is not job)
        return next((each for each in earlier if wanted in each.request.prompt), None)

    def find(self, job_id: str) -> Job | None:
        """Return a job by its id, unless it has been lost."""
        job = self.ledger.get(job_id)
        return None if job is None or job.lost else job

    def poll(self, job: Job, base_url: str) -> dict[str, Any] | None:
        """Return what a poll shows of a job, its output under `base_url`; None once it is lost."""
        prompts = (job.request.prompt,)
        if self.rulebook.take(LoseJob, Point.POLL, prompts):
            self.ledger.lose(job)
        if job.lost:
            return None
        contradiction = self.rulebook.take(Contradict, Point.POLL, prompts)
        if contradiction is not None:
            return self._contradict(job, base_url, contradiction)
        shown = self.show(job, base_url)
        if shown["outputs"]:
            foreign = self.rulebook.take(ForeignOutput, Point.POLL, prompts)
            if foreign is not None:
                shown["outputs"][0]["url"] = foreign.url
        return shown

    def show(self, job: Job, base_url: str, *, shown_as: State | None = None) -> dict[str, Any]:
        """Return a job as the API shows it."""
        url = f"{base_url}files/{job.file_name}"
        return job.describe(self.clock(), url, shown_as=shown_as)

    def look_up(self, reference: str) -> list[Job]:
        """Return the jobs of a client reference, oldest first, without the lost ones."""
        return [job for job in self.ledger.list_by_reference(reference) if not job.lost]

    def cancel(self, job: Job) -> None:
        """Cancel a job; one that has ended stays as it is."""
        cancelled = self.ledger.cancel(job)
        self.history.note_cancel(self.clock(), job, cancelled=cancelled)

    def _plan(self, request: JobRequest) -> Plan:
        prompts = (request.prompt,)
        if self.rulebook.take(Stall, Point.SUBMIT, prompts):
            return Plan(seconds=None)
        duration = self.rulebook.take(Seconds, Point.SUBMIT, prompts)
        spread = duration.seconds if duration else self._seconds
        failure = self.rulebook.take(Fail, Point.SUBMIT, prompts)
        return Plan(
            seconds=spread.draw(self.rulebook.source),
            code=failure.code if failure else None,
            message=failure.message if failure else None,
        )

    def _contradict(self, job: Job, base_url: str, rule: Contradict) -> dict[str, Any]:
        match rule.kind:
            case "done_without_outputs":
                return self.show(job, base_url, shown_as=State.DONE) | {"outputs": []}
            case "done_then_rendering":
                state = State.RENDERING if job.shown_done else State.DONE
                job.shown_done = True
                return self.show(job, base_url, shown_as=state)
            case "unknown_state":
                return self.show(job, base_url) | {"state": "transmogrifying"}
