"""What all requests share: JSON answers, the credential, limits, and the faults of any request.

Used by the routes of both APIs, which do their work between the faults before it and after it.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from gateway_simulator.behaviours import Hang, Nonsense, Point, Refusal, Slow, Status, Timed
from gateway_simulator.faults import Dripped, Dropped, make_nonsense, pause
from gateway_simulator.rulebook import Rulebook


class Answer(Response):
    """A JSON document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the document as bytes."""
        return orjson.dumps(content)


def shape_error(status: int, code: str, message: str) -> dict[str, Any]:
    """Return an error document in the provider's form."""
    return {"error": {"code": code, "message": message}}


def make_error(status: int, code: str, message: str) -> Answer:
    """Return an error in the provider's form."""
    return Answer(shape_error(status, code, message), status)


def make_invalid(code: str, error: ValidationError) -> Answer:
    """Return a 400 that names each field at fault and what is wrong with it."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return make_error(400, code, "; ".join(problems))


Endpoint = Callable[[Request], Awaitable[ASGIApp]]
ShapeError = Callable[[int, str, str], Any]
"""Status, code and message to an error document in the dialect of an API."""


class FaultInjector:
    """Carries requests out under the rules in force.

    `token` is what callers present, `unauthorized` code and message for those who do not,
    `shape_error` the form of errors in the dialect of the API, `clock` gives epoch seconds.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        token: str,
        unauthorized: tuple[str, str],
        shape_error: ShapeError,
        clock: Callable[[], float],
    ) -> None:
        self._rulebook = rulebook
        self._credential = f"Bearer {token}".encode()
        self._unauthorized = unauthorized
        self._shape_error = shape_error
        self._clock = clock

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that answers 401 to callers without the token, unless told not to."""

        async def guarded(request: Request) -> ASGIApp:
            given = request.headers.get("authorization", "").encode()
            known = secrets.compare_digest(given, self._credential)
            if known or not self._rulebook.control.require_auth:
                return await endpoint(request)
            return Answer(self._shape_error(401, *self._unauthorized), 401)

        return guarded

    async def carry(
        self, request: Request, point: Point, prompts: Sequence[str], work: Callable[[], ASGIApp]
    ) -> ASGIApp:
        """Return what a request is answered, having done its `work` unless a rule prevents it.

        `prompts` are the texts that the request is about. Its body must have been read.
        """
        wait = self._rulebook.admit(self._clock(), point, prompts, request.headers)
        if wait is not None:
            document = self._shape_error(429, "rate_limit_exceeded", "The rate limit is reached.")
            return JSONResponse(document, 429, {"Retry-After": str(max(1, math.ceil(wait)))})
        early = await self._disturb(request, point, prompts, "before")
        if early is not None:
            return early
        answer = work()
        late = await self._disturb(request, point, prompts, "after")
        if late is not None:
            return late
        if not isinstance(answer, Response):
            return answer
        nonsense = self._rulebook.take(Nonsense, point, prompts, headers=request.headers)
        if nonsense is not None:
            return make_nonsense(nonsense, answer)
        slow = self._rulebook.take(Slow, point, prompts, headers=request.headers)
        return answer if slow is None else Dripped(answer, slow.bytes_per_second)

    async def _disturb(
        self,
        request: Request,
        point: Point,
        prompts: Sequence[str],
        when: Literal["before", "after"],
    ) -> ASGIApp | None:
        def is_due(rule: Timed) -> bool:
            return rule.when == when

        take, headers = self._rulebook.take, request.headers
        hang = take(Hang, point, prompts, accept=is_due, headers=headers)
        if hang is not None and not await pause(request.receive, hang.seconds):
            return Dropped()
        refusal = take(Refusal, point, prompts, accept=is_due, headers=headers)
        if isinstance(refusal, Status):
            after = refusal.retry_after
            document = self._shape_error(refusal.status, refusal.code, refusal.message)
            extra = {} if after is None else {"Retry-After": str(after)}
            return JSONResponse(document, refusal.status, extra)
        return None if refusal is None else Dropped()
