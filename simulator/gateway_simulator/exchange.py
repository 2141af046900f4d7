"""What all requests of `/v1` share: the credential, limits, and the faults that may strike any.

Used by the routes of both APIs, which do their work between what strikes before it and after.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from gateway_simulator.behaviours import Hang, Nonsense, Point, Refusal, Slow, Status, Timed
from gateway_simulator.connection import pause
from gateway_simulator.faults import Dripped, Dropped, make_nonsense
from gateway_simulator.rulebook import Rulebook

ShapeError = Callable[[int, str, str], Any]
"""Status, code and message to an error document in the dialect of an API."""


class Exchange:
    """Carries requests out under the rules in force.

    `token` is what callers present, `shape_error` the form of errors that rules ask for, `clock`
    gives epoch seconds.
    """

    def __init__(
        self,
        rulebook: Rulebook,
        token: str,
        shape_error: ShapeError,
        clock: Callable[[], float],
    ) -> None:
        self._rulebook = rulebook
        self._credential = f"Bearer {token}".encode()
        self._shape_error = shape_error
        self._clock = clock

    def is_authorized(self, request: Request) -> bool:
        """Whether the caller presents the token, or need not."""
        if not self._rulebook.control.require_auth:
            return True
        given = request.headers.get("authorization", "").encode()
        return secrets.compare_digest(given, self._credential)

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
