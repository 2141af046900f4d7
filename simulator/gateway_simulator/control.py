"""The control API under /control: behaviour and history, for tests and people; used by `app`.

It has no credential, so it answers callers on the same machine only.
"""

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway_simulator.behaviours import Control
from gateway_simulator.history import PROMPT_PREFIX
from gateway_simulator.injector import Answer, make_error, make_invalid
from gateway_simulator.jobs import Job, format_time
from gateway_simulator.provider import Provider

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


class ControlRoutes:
    """The endpoints that steer and watch a provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def routes(self) -> list[Route]:
        """Return the routes, all closed to other machines."""
        table: list[tuple[str, str, Endpoint]] = [
            ("GET", "/control", self.show),
            ("PUT", "/control", self.replace),
            ("DELETE", "/control", self.reset),
            ("GET", "/control/history", self.show_history),
            ("DELETE", "/control/history", self.clear_history),
            ("GET", "/control/jobs", self.list_jobs),
            ("GET", "/control/moderations", self.list_moderations),
        ]
        return [Route(path, _keep_local(call), methods=[verb]) for verb, path, call in table]

    async def show(self, request: Request) -> Response:
        """GET /control: the rules in force, each with how often it has been applied."""
        return Answer(self._provider.rulebook.describe())

    async def replace(self, request: Request) -> Response:
        """PUT /control: put a whole document in force; 400 says what is wrong with it."""
        try:
            control = Control.model_validate_json(await request.body())
        except ValidationError as error:
            return make_invalid("invalid_control", error)
        self._provider.rulebook.replace(control)
        log.info("control replaced: %s", control.model_dump_json(exclude_defaults=True))
        return await self.show(request)

    async def reset(self, request: Request) -> Response:
        """DELETE /control: behave again. What was decided of jobs already made stays."""
        self._provider.rulebook.replace(Control())
        log.info("control reset")
        return Response(status_code=204)

    async def show_history(self, request: Request) -> Response:
        """GET /control/history: what callers did since the start or the last DELETE."""
        return Answer(self._provider.history.describe())

    async def clear_history(self, request: Request) -> Response:
        """DELETE /control/history: count afresh; the jobs stay."""
        self._provider.history.clear()
        return Response(status_code=204)

    async def list_jobs(self, request: Request) -> Response:
        """GET /control/jobs: all jobs, lost ones too, or those of one ?client_reference=."""
        reference = request.query_params.get("client_reference")
        ledger = self._provider.ledger
        jobs = ledger if reference is None else ledger.list_by_reference(reference)
        base_url = str(request.base_url)
        return Answer({"jobs": [self._describe(job, base_url) for job in jobs]})

    async def list_moderations(self, request: Request) -> Response:
        """GET /control/moderations: how often each input was asked, or those of ?contains=.

        With ?asked_at_least=N only what was asked that often.
        """
        try:
            least = int(request.query_params.get("asked_at_least", "1"))
        except ValueError:
            return make_error(400, "invalid_query", "asked_at_least: must be an integer")
        wanted = request.query_params.get("contains", "")
        moderations = self._provider.history.moderations
        return Answer({"inputs": moderations.list_inputs(wanted, least)})

    def _describe(self, job: Job, base_url: str) -> dict[str, Any]:
        return self._provider.show(job, base_url) | {
            "idempotency_key": job.key,
            "prompt_prefix": job.request.prompt[:PROMPT_PREFIX],
            "duration": job.plan.seconds,
            "lost": job.lost,
            "polls": job.polls,
            "poll_times": [format_time(moment) for moment in job.poll_times],
        }


def _keep_local(endpoint: Endpoint) -> Endpoint:
    async def guarded(request: Request) -> Response:
        if request.client is None or not _is_loopback(request.client.host):
            return make_error(403, "forbidden", "/control answers on the same machine only.")
        return await endpoint(request)

    return guarded


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
