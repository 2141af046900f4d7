"""The provider over HTTP: /v1/jobs and /files; used by `app`.

Every request goes through `injector`, where the faults that may strike any request do.
"""

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway_simulator.behaviours import BadOutput, Point
from gateway_simulator.faults import make_bad_output
from gateway_simulator.injector import Answer, FaultInjector, make_error, make_invalid, shape_error
from gateway_simulator.jobs import Job, JobRequest, State, Videos
from gateway_simulator.provider import Provider


class ProviderRoutes:
    """The endpoints of the provider; `token` is what callers of /v1 present."""

    def __init__(self, provider: Provider, token: str) -> None:
        self._provider = provider
        self._rulebook = provider.rulebook
        self._videos = Videos()
        self._injector = FaultInjector(
            *(provider.rulebook, token, ("unauthorized", "The bearer token is missing or wrong.")),
            *(shape_error, provider.clock),
        )

    def routes(self) -> list[Route]:
        """Return the routes."""
        guard = self._injector.guard
        return [
            Route("/v1/jobs", guard(self.submit), methods=["POST"]),
            Route("/v1/jobs", guard(self.look_up), methods=["GET"]),
            Route("/v1/jobs/{job_id}", guard(self.poll), methods=["GET"]),
            Route("/v1/jobs/{job_id}/cancel", guard(self.cancel), methods=["POST"]),
            Route("/files/{name}", self.serve_output, methods=["GET"]),
        ]

    async def submit(self, request: Request) -> ASGIApp:
        """POST /v1/jobs: 201 with the new job, 200 with the one of the same Idempotency-Key."""
        try:
            wanted = JobRequest.model_validate_json(await request.body())
        except ValidationError as error:
            return make_invalid("invalid_request", error)
        submission = self._provider.history.note_submission(
            self._provider.clock(),
            request.headers.get("idempotency-key"),
            wanted.client_reference,
            wanted.prompt,
        )

        def work() -> Answer:
            job, replay = self._provider.submit(wanted, submission)
            return self._answer(request, job, 200 if replay else 201)

        return await self._injector.carry(request, Point.SUBMIT, (wanted.prompt,), work)

    async def look_up(self, request: Request) -> ASGIApp:
        """GET /v1/jobs?client_reference=X: the jobs of that reference, oldest first."""
        reference = request.query_params.get("client_reference")
        if reference is None:
            return make_error(400, "invalid_request", "client_reference: must be given")
        base_url = str(request.base_url)

        def work() -> Answer:
            jobs = self._provider.look_up(reference)
            return Answer({"jobs": [self._provider.show(job, base_url) for job in jobs]})

        prompts = [job.request.prompt for job in self._provider.look_up(reference)]
        return await self._injector.carry(request, Point.LOOKUP, prompts, work)

    async def poll(self, request: Request) -> ASGIApp:
        """GET /v1/jobs/{id}: the job as it is now; 404 for an unknown or lost one."""
        job = self._provider.find(request.path_params["job_id"])
        self._provider.history.polls += 1
        if job is not None:
            job.note_poll(self._provider.clock())

        def work() -> Answer:
            shown = None if job is None else self._provider.poll(job, str(request.base_url))
            return _unknown_job() if shown is None else Answer({"job": shown})

        return await self._injector.carry(request, Point.POLL, _prompts(job), work)

    async def cancel(self, request: Request) -> ASGIApp:
        """POST /v1/jobs/{id}/cancel: the job, which is cancelled unless it had ended."""
        job = self._provider.find(request.path_params["job_id"])

        def work() -> Answer:
            if job is None:
                return _unknown_job()
            self._provider.cancel(job)
            return self._answer(request, job, 200)

        return await self._injector.carry(request, Point.CANCEL, _prompts(job), work)

    async def serve_output(self, request: Request) -> ASGIApp:
        """GET /files/{name}: the MP4 of a job that is done. Needs no credential."""
        job = self._provider.ledger.get_by_file(request.path_params["name"])

        def work() -> ASGIApp:
            # A poll may have shown the output early, by order of a `contradict` rule.
            if job is None or not (
                job.shown_done or job.state(self._provider.clock()) is State.DONE
            ):
                return make_error(404, "not_found", "There is no such file.")
            video = self._videos.get(job.request.aspect_ratio, sound=job.request.with_audio)
            rule = self._rulebook.take(BadOutput, Point.OUTPUT, _prompts(job))
            return make_bad_output(rule, video) if rule else Response(video, media_type="video/mp4")

        return await self._injector.carry(request, Point.OUTPUT, _prompts(job), work)

    def _answer(self, request: Request, job: Job, status: int) -> Answer:
        return Answer({"job": self._provider.show(job, str(request.base_url))}, status)


def _prompts(job: Job | None) -> tuple[str, ...]:
    return () if job is None else (job.request.prompt,)


def _unknown_job() -> Answer:
    return make_error(404, "not_found", "There is no such job.")
