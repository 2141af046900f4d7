"""One line's calls: repeated while its provider takes none, until it is answered or stopped (§5.7).

What the provider says of the gateway (too many calls, an outage, bad credentials) is waited out
within the batch's window. A line that fails again and again in other ways, while the provider has
answered others not long ago, ends with that error: it would hold up its batch for a day.
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
from gateway_core.batches.results import LineResult, tell_answer
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
from gateway_operator.batches.limiter import Lane
from gateway_operator.batches.tools import BatchTools

MOST_FAILURES = 10
"""Calls of a line that end in a 5xx, a time-out or nonsense, until it ends: about two minutes."""
MOST_ODDITIES = 3
"""Calls of a line that end in what nobody has thought of, until the line ends with that."""
PROOF_SECONDS = 600.0
"""How long an answer to another line shows that it is not the provider that fails."""
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

_log = structlog.get_logger(__name__)


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
        try:
            request = await _read(line)
        except BaseException:
            way.lane.leave()
            raise
        repeats, failures, oddities = 0, 0, 0
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
            except (
                Exception
            ) as error:  # the boundary: one odd line ends alone, not all of its batch
                oddities += 1
                _log.exception("a line cannot be run", line=line.number, error=type(error).__name__)
                if oddities >= MOST_ODDITIES:
                    return self._tell_oddity(line, request)
                problem = UpstreamUnclear("The call could not be made.")
            repeats += 1
            is_unclear = isinstance(problem, UpstreamUnclear)
            failures += is_unclear and way.lane.has_answered(PROOF_SECONDS)
            if failures >= MOST_FAILURES:
                return self._tell_failure(line, request, problem)
            way = self._find_way()
            if not await self._wait(problem, repeats):
                return None
            if not await self._enter(way):
                return None

    async def _call(self, line: Line, request: Request, way: Way) -> LineResult:
        """One call, whose place is given back at its end. UpstreamError."""
        lane, moderator, begun = way.lane, way.moderator, asyncio.get_running_loop().time()
        try:
            call = read_call(request.body)
            body = call.to_upstream(moderator.route.upstream_model)
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
        late = isinstance(problem, UpstreamTimedOut)
        status, code = (504, "upstream_timeout") if late else (502, "upstream_error")
        fault = _write_error(problem.message, "server_error", code, None)
        return self._tell(line, request, status, fault)

    def _tell_oddity(self, line: Line, request: Request) -> LineResult:
        fault = _write_error("The gateway cannot run this.", "server_error", "internal_error", None)
        return self._tell(line, request, 500, fault)

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

    async def _wait(self, problem: UpstreamError, repeats: int) -> bool:
        """Waits before the next call; False where the run is stopped meanwhile."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(repeats - 1, 8))
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


async def _read(line: Line) -> Request:
    """The line's request; a long one is read beside everything else of this process."""
    data = line.data or b""
    if len(data) <= LONG_BYTES:
        return read_request(data)
    return await asyncio.to_thread(read_request, data)


def _write_error(message: str, kind: str, code: str, param: str | None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
