"""One line's calls: repeated while its provider takes none, until it is answered or stopped (§5.7).

What the provider says of the gateway (too many calls, an outage, bad credentials) is waited out
within the batch's window. A line of which others show that it alone is refused again and again
ends with that error: it would hold up the lines after it for a day.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from gateway_core.contract.batch import GatewayBatch
from gateway_core.contract.conditions import Reason
from gateway_core.contract.ids import mint_request_id
from gateway_core.domain.batchlines import Line, Request, read_request
from gateway_core.domain.batchresults import LineResult, tell_answer
from gateway_core.domain.moderations import read_call
from gateway_core.ports.upstream import (
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamTimedOut,
)
from gateway_core.usecases.moderators import Moderator
from gateway_operator.controllers.batches.lanes import Lane
from gateway_operator.controllers.batches.tools import BatchTools

MOST_REFUSALS = 6
"""Failures of a line, each after others were answered, until it ends."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class Way:
    """Where a batch's calls go at present."""

    moderator: Moderator
    lane: Lane


class LineCalls:
    """The calls of one batch's lines; `find_way` tells where they go, `note_trouble` is told why
    one has to be repeated."""

    def __init__(
        self,
        tools: BatchTools,
        batch: GatewayBatch,
        find_way: Callable[[], Way],
        note_trouble: Callable[[Reason, str], None],
        stop: asyncio.Event,
    ) -> None:
        self._tools = tools
        self._batch = batch
        self._find_way = find_way
        self._note_trouble = note_trouble
        self._stop = stop

    async def run(self, line: Line, way: Way) -> LineResult | None:
        """The result of a line, whose first call has its place in `way`'s lane already.

        None where the run was stopped before the provider has answered.
        """
        request = read_request(line.data or b"")
        refusals, failures = 0, 0
        lane, answered = way.lane, way.lane.answers
        while True:
            try:
                return await self._call(line, request, way)
            except UpstreamDenied as error:
                self._note_trouble(Reason.PROVIDER_UNAVAILABLE, error.message)
                await self._tools.base.alarms.report_refusal(
                    way.moderator.route.provider_name, error
                )
                problem: UpstreamError = error
            except UpstreamError as error:
                problem = error
                self._note_trouble(Reason.PROVIDER_UNAVAILABLE, error.message)
            failures += 1
            refusals += lane.answers > answered and not isinstance(problem, UpstreamDenied)
            if refusals >= MOST_REFUSALS:
                return self._tell_failure(line, request, problem)
            way = self._find_way()
            lane, answered = way.lane, way.lane.answers
            if not await self._wait(problem, failures):
                return None
            if not await self._enter(way):
                return None

    async def _call(self, line: Line, request: Request, way: Way) -> LineResult:
        """One call, whose place is given back at its end. UpstreamError."""
        lane, moderator, begun = way.lane, way.moderator, asyncio.get_running_loop().time()
        call = read_call(request.body)
        body = call.to_upstream(moderator.route.upstream_model)
        try:
            with self._tools.base.calls.time(moderator.route.provider_name, "moderate"):
                answer = await moderator.upstream.moderate(body)
        except UpstreamRejected as error:
            lane.note_answer()
            fault = _write_error(error.message, "invalid_request_error", "invalid_value", "input")
            return self._tell(line, request, 400, fault)
        except UpstreamBusy as error:
            lane.note_busy(error.retry_after)
            lane.note_failure(begun)
            raise
        except UpstreamDenied:
            lane.note_denial()
            raise
        except UpstreamError:
            lane.note_failure(begun)
            raise
        finally:
            lane.leave()
        lane.note_answer()
        return self._tell(line, request, 200, {**answer, "model": call.model_id})

    def _tell_failure(self, line: Line, request: Request, problem: UpstreamError) -> LineResult:
        match problem:
            case UpstreamLimited():
                status, kind, code = 429, "rate_limit_error", "upstream_rate_limited"
            case UpstreamTimedOut():
                status, kind, code = 504, "server_error", "upstream_timeout"
            case UpstreamBusy():
                status, kind, code = 503, "server_error", "service_unavailable"
            case _:
                status, kind, code = 502, "server_error", "upstream_error"
        return self._tell(line, request, status, _write_error(problem.message, kind, code, None))

    def _tell(
        self, line: Line, request: Request, status: int, body: dict[str, object]
    ) -> LineResult:
        return tell_answer(
            line.number,
            request=self._tools.name_line(self._batch, line.number),
            custom_id=request.custom_id,
            call=mint_request_id(),
            status=status,
            body=body,
        )

    async def _wait(self, problem: UpstreamError, failures: int) -> bool:
        """Waits before the next call; False where the run is stopped meanwhile."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 8))
        pause = max(problem.retry_after or 0.0, pause)
        pause *= random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries, hides nothing
        try:
            async with asyncio.timeout(pause):
                await self._stop.wait()
        except TimeoutError:
            return True
        return False

    async def _enter(self, way: Way) -> bool:
        """Waits for a place; False, without one, where the run is stopped meanwhile."""
        account, name = self._batch.spec.request.account_name, self._batch.metadata.name
        entering = asyncio.ensure_future(way.lane.enter(account, name, again=True))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((entering, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                return True
            if entering.done():
                way.lane.leave()
            return False
        finally:
            stopping.cancel()
            if not entering.done():
                entering.cancel()


def _write_error(message: str, kind: str, code: str, param: str | None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
