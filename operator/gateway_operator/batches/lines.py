"""The calls of one line, repeated until it is answered or stopped (§5.7).

Failures that are not the line's (too many calls, an outage, bad credentials) are waited out within
the batch's window. A line that fails again and again in other ways, while the provider has answered
other lines recently, ends with that error: it would delay its batch for a day.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.ids import mint_request_id
from gateway_core.batches.lines import LONG_BYTES, Line, Request, read_request
from gateway_core.batches.results import LineResult, render_answer
from gateway_core.providers.moderation import read_call
from gateway_core.providers.moderators import Moderator
from gateway_core.providers.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimedOut,
    UpstreamUnclear,
)
from gateway_operator.batches.limiter import ProviderLimiter
from gateway_operator.batches.store import BatchStore
from gateway_operator.context import Context
from gateway_operator.tasks.calls import ProviderCalls

MOST_FAILURES = 10
"""Calls of a line that fail by a 5xx, a timeout or a malformed answer: about two minutes."""
MOST_ODDITIES = 3
"""Calls of a line that fail by an unexpected exception, before the line fails."""
PROOF_SECONDS = 600.0
"""How long an answer to another line shows that the provider works."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Destination:
    """The provider that a batch's calls go to at present."""

    moderator: Moderator
    limiter: ProviderLimiter


@dataclass(eq=False)
class LineCalls:
    """The calls of one batch's lines.

    `find_destination` is called before each repeated call, `note_trouble` with the reason for it.
    """

    context: Context
    store: BatchStore
    calls: ProviderCalls
    batch: GatewayBatch
    find_destination: Callable[[], Destination | None]
    note_trouble: Callable[[Reason, str], None]
    stop: asyncio.Event

    def _note_wait(self, to: Destination, error: UpstreamError) -> None:
        text = f"provider {to.moderator.route.provider_name}: {error.message}"
        self.note_trouble(Reason.WAITING_FOR_PROVIDER, text)

    async def run(self, line: Line, to: Destination) -> LineResult | None:
        """Return the result of a line, whose first call holds a place in the limiter already.

        None where the run was stopped before the provider has answered.
        """
        try:
            request = await _read(line)
        except BaseException:
            to.limiter.leave()
            raise
        repeats, failures, oddities = 0, 0, 0
        while True:
            try:
                return await self._call(line, request, to)
            except UpstreamDenied as error:
                self._note_wait(to, error)
                await self.context.events.report_refusal(to.moderator.route.provider_name, error)
                problem: UpstreamError = error
            except UpstreamError as error:
                problem = error
                self._note_wait(to, error)
            except Exception as error:  # the boundary: an odd line fails alone, not its batch
                oddities += 1
                _log.exception("a line cannot be run", line=line.number, error=type(error).__name__)
                if oddities >= MOST_ODDITIES:
                    return self._render_oddity(line, request)
                problem = UpstreamUnclear("The call could not be made.")
            repeats += 1
            is_unclear = isinstance(problem, UpstreamUnclear)
            failures += is_unclear and to.limiter.has_answered(PROOF_SECONDS)
            if failures >= MOST_FAILURES:
                return self._render_failure(line, request, problem)
            to = self.find_destination() or to
            if not await self._wait(problem, repeats):
                return None
            if not await self._enter(to):
                return None

    async def _call(self, line: Line, request: Request, to: Destination) -> LineResult:
        """Make one call, which returns its place. UpstreamError."""
        limiter, moderator, begun = to.limiter, to.moderator, asyncio.get_running_loop().time()
        try:
            call = read_call(request.body)
            body = call.to_upstream(moderator.route.upstream_model)
            route, model = moderator.route, moderator.model
            with self.calls.time(route.provider_name, "moderate", model.name):
                answer = await moderator.upstream.moderate(body)
        except UpstreamRejected as error:
            limiter.note_answer()
            fault = _write_error(error.message, "invalid_request_error", "invalid_value", "input")
            return self._render(line, request, 400, fault)
        except UpstreamBusy as error:
            limiter.note_busy(error.retry_after)
            limiter.note_failure(begun)
            raise
        except UpstreamDenied:
            limiter.note_denial()
            raise
        except UpstreamError:
            limiter.note_failure(begun)
            raise
        finally:
            limiter.leave()
        limiter.note_answer()
        return self._render(line, request, 200, {**answer, "model": call.model_id})

    def _render_failure(self, line: Line, request: Request, problem: UpstreamError) -> LineResult:
        late = isinstance(problem, UpstreamTimedOut)
        status, code = (504, "upstream_timeout") if late else (502, "upstream_error")
        fault = _write_error(problem.message, "server_error", code, None)
        return self._render(line, request, status, fault)

    def _render_oddity(self, line: Line, request: Request) -> LineResult:
        fault = _write_error("The gateway cannot run this.", "server_error", "internal_error", None)
        return self._render(line, request, 500, fault)

    def _render(
        self, line: Line, request: Request, status: int, body: dict[str, object]
    ) -> LineResult:
        return render_answer(
            line.number,
            request=self.store.name_line(self.batch, line.number),
            custom_id=request.custom_id,
            call=mint_request_id(),
            status=status,
            body=body,
        )

    async def _wait(self, problem: UpstreamError, repeats: int) -> bool:
        """Wait before the next call; False where the run is stopped meanwhile."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(repeats - 1, 8))
        pause = max(problem.retry_after or 0.0, pause)
        pause *= random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, hides nothing
        try:
            async with asyncio.timeout(pause):
                await self.stop.wait()
        except TimeoutError:
            return True
        return False

    async def _enter(self, to: Destination) -> bool:
        """Wait for a place; False, without one, where the run is stopped meanwhile."""
        account, name = self.batch.spec.request.account_name, self.batch.metadata.name
        entering = asyncio.ensure_future(to.limiter.enter(account, name, again=True))
        stopping = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not self.stop.is_set():
                return True
            if entering.done():
                to.limiter.leave()
            return False
        finally:
            stopping.cancel()
            if not entering.done():
                entering.cancel()


async def _read(line: Line) -> Request:
    """Return the line's request; a long one is parsed in a thread, beside the event loop."""
    data = line.data or b""
    if len(data) <= LONG_BYTES:
        return read_request(data)
    return await asyncio.to_thread(read_request, data)


def _write_error(message: str, kind: str, code: str, param: str | None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
