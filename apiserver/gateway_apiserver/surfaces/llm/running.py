"""One admitted LLM call, from its reservation to the end of its response.

The call ends with its client: a disconnect closes the upstream connection at once, and the call is
charged for the tokens seen so far (contract §7.4).
"""

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.llm.cached import Tape
from gateway_apiserver.surfaces.llm.call_headers import (
    CallHeaders,
    choose_stream_head,
    name_dropped,
)
from gateway_apiserver.surfaces.llm.large_answers import (
    LARGE_ANSWER_BYTES,
    AnswerDropped,
    FrameRoom,
    LargeAnswers,
    send_large,
)
from gateway_apiserver.surfaces.llm.options import TIMEOUT
from gateway_apiserver.surfaces.llm.relay import KeepAlive, Relay
from gateway_core.admission.admission import Payer
from gateway_core.api.errors import (
    GatewayError,
    UpstreamFailed,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from gateway_core.billing.counters import Hold
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.kube.clock import CLOCK
from gateway_core.llm.attempts import open_first
from gateway_core.llm.formats.answers import list_finish_reasons
from gateway_core.llm.formats.calls import NO_TOKENS, Format, TokenUsage
from gateway_core.llm.formats.estimates import (
    complete_broken_usage,
    complete_usage,
    estimate_usage,
)
from gateway_core.llm.formats.exchange import open_writer
from gateway_core.llm.formats.failures import PUBLIC_CODES, ReportedError
from gateway_core.llm.formats.sse import ErrorForm, StreamFailed
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.opening import CallContext, OpenCall, WholeAnswer
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.service import LlmService, translate_error
from gateway_core.llm.spans import end_attempt, note_error, note_reasons
from gateway_core.observability.tracing import NO_SPAN
from gateway_core.providers.catalog import Model
from gateway_core.providers.moderators import CALL_FAILED
from gateway_core.providers.upstream import UpstreamError, UpstreamSilent
from gateway_web.errors import NO_RETRY, describe_error
from gateway_web.http1.exchange import ignore
from gateway_web.responses import JSON, NO_STORE, Response, send_end, send_head

HEAD_SECONDS = 10.0
"""Longest wait of a stream's head for output. Until then a failure is an error status (§7.4)."""


class RunningCall:
    """An admitted call, from its reservation to its settlement.

    `slots` has the room that its body takes, and gets that of its answer.
    """

    def __init__(
        self,
        service: LlmService,
        call: Call,
        payer: Payer,
        priced: PricedCall,
        hold: Hold,
        times: CallTimes,
        slots: HeldUnits,
        answers: LargeAnswers,
        headers: CallHeaders | None,
    ) -> None:
        self._slots = slots
        self._prompt_room = HeldUnits()
        self._answers = answers
        self._headers = headers
        self._service = service
        self._call = call
        self._payer = payer
        self._priced = priced
        self._hold = hold
        self._times = times
        self._opened: OpenCall | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._dropped: AnswerDropped | None = None
        self._is_gone = False
        self._is_late = False
        """Return whether the client's own time for the call has passed."""
        self._is_settled = False
        self._is_begun = False
        """Return whether the head of a stream was sent."""
        self._early = open_writer(priced.call, int(CLOCK.time()))
        """The stream before it is known which model answers."""
        self._keep_alive = KeepAlive(call.exchange, self._make_early)
        self.succeeded = False
        self.tapes: tuple[Tape, ...] = ()

    @property
    def model(self) -> Model:
        """The model that answers, once one does."""
        return self._priced.model

    async def run(self) -> Response | None:
        """Carry the call out and settle it; the response, or None where it was sent."""
        self._service.begin(self._payer, self._hold)
        self._call.exchange.on_gone = self._leave
        attempts, timer = self._priced.attempts, None
        if attempts is not None and attempts.total_seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(attempts.total_seconds, self._expire)
        try:
            self._prompt_room = self._slots.hand_over()
            with self._prompt_room:
                opened = self._opened = await self._open_held()
            self._priced = opened.priced
            if opened.exchange.dropped and not self._is_begun:
                self._call.context.headers.append(name_dropped(opened.exchange.dropped))
            if opened.stream is not None:
                await self._stream(opened, opened.stream)
                return None
            return await self._answer(opened)
        except GatewayError as error:
            if not self._is_begun:
                raise
            await self._end_unanswered(error)
            return None
        finally:
            # the connection outlives the call, and would keep its body
            self._call.exchange.on_gone = ignore
            self._keep_alive.stop()
            if timer is not None:
                timer.cancel()
            if self._opened is not None:
                self._opened.sent.close()
            if not self._is_settled:
                await self._settle(self._measure_unseen(), failed=True)

    async def _open_held(self) -> OpenCall:
        """Open the call; the head of a stream goes to the client after `HEAD_SECONDS`."""
        if not self._priced.call.stream:
            return await self._open()
        begun: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        timer = loop.call_later(
            HEAD_SECONDS, lambda: begun.append(loop.create_task(self._begin_early()))
        )
        try:
            return await self._open()
        finally:
            timer.cancel()
            for task in begun:
                task.cancel()
                await asyncio.wait((task,))

    async def _begin_early(self) -> None:
        """Send the head and a keep-alive before it is known which model answers."""
        if self._priced.call.dropped:
            self._call.context.headers.append(name_dropped(self._priced.call.dropped))
        await self._send_head()
        self._keep_alive.beat()

    def _make_early(self) -> bytes:
        """Return a keep-alive before it is known which model answers."""
        sent = self._early.keep_alive()
        if self._priced.call.format is Format.RESPONSES:
            for tape in self.tapes:
                tape.add(sent)
        return sent

    async def _send_head(self) -> None:
        await send_head(self._call.send, 200, choose_stream_head(self._priced.call))
        self._is_begun = True
        self._keep_alive.start()

    async def _open(self) -> OpenCall:
        if self._call.exchange.is_gone:
            raise ClientDisconnect
        task = self._opening = asyncio.current_task()
        context = CallContext(self._payer.account.name, self._times, self._prompt_room, self._begin)
        try:
            if self._priced.attempts is None:
                return await self._service.open(self._priced, context)
            return await open_first(self._service, self._priced, context)
        except asyncio.CancelledError:
            if not self._is_gone and not self._is_late:
                raise
            assert task is not None
            task.uncancel()
            raise self._find_end() from None
        except GatewayError as error:
            if isinstance(error, UpstreamRateLimited):
                # the provider's limit is the cause, which rate headers do not describe (§12.4)
                self._call.context.rate = None
            raise
        finally:
            self._opening = None

    async def _begin(self, opened: OpenCall) -> None:
        """Wait for the output of a provider that has answered 2xx, as `Begin`."""
        if opened.is_final:
            # the body is sent and dropped, so another large one may come meanwhile
            self._prompt_room.release()
        if self._priced.call.stream:
            await opened.begin_stream(self._times.note_begun)
            return
        response, account = opened.sent.response, self._payer.account.name
        try:
            if self._times.limit is not None:
                await response.wait_for_body()
                self._times.note_begun()
            raw = await self._answers.read(response, account, self._slots)
            is_large = len(raw) > LARGE_ANSWER_BYTES
            complete = opened.exchange.complete
            document, used = await asyncio.to_thread(complete, raw) if is_large else complete(raw)
        except AnswerDropped as dropped:
            # no other provider is asked: this one has written its answer
            self._dropped = dropped
        except BaseException:
            self._slots.release()
            raise
        else:
            opened.whole = WholeAnswer(document, used, is_large)

    def _leave(self) -> None:
        """End the upstream call of a client that has left."""
        self._is_gone = True
        self._stop()

    def _expire(self) -> None:
        """End the upstream call: the client's own time for it has passed."""
        self._is_late = True
        self._stop()

    def _stop(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        elif self._opened is not None:
            self._opened.sent.response.abort()

    def _find_end(self) -> ClientDisconnect | GatewayError:
        """Return the error of a call that its client ended, by leaving or by its time-out."""
        if self._is_gone:
            return ClientDisconnect()
        # its client's time for the call is over
        self._call.context.headers.append(NO_RETRY)
        return _make_late()

    async def _settle(self, used: TokenUsage | None, *, failed: bool) -> int:
        """Charge the call; its cost in micro-dollars."""
        self._is_settled, self.succeeded = True, not failed
        self._observe(used or NO_TOKENS, failed=failed)
        return await self._service.end(
            self._payer,
            self._priced,
            self._hold,
            used,
            failed=failed,
            reached=self._times.reached,
            abandoned=self._times.abandoned,
        )

    def _observe(self, used: TokenUsage, *, failed: bool) -> None:
        opened, times = self._opened, self._times
        if opened is None:
            return
        times.ended = time.monotonic()
        if self._priced.call.stream and not failed:
            # a short stream comes in one piece, whose first output is its last
            times.first = times.first or times.ended
        outcome = "completed"
        if failed:
            outcome = "client_gone" if self._is_gone or self._is_late else "failed"
        model, provider = self._priced.model, opened.route.provider_name
        self._service.metrics.count_call(model, provider, outcome, times, used)
        end_attempt(opened.span, outcome, times, used)

    async def _answer(self, opened: OpenCall) -> Response | None:
        """Return the whole response of a call without a stream.

        Return None where it is large, and sent.
        """
        whole = opened.whole
        if whole is None:
            assert self._dropped is not None
            # the provider has written it
            await self._settle(estimate_usage(self._priced.call, self._dropped.size), failed=True)
            raise self._dropped.error from self._dropped
        document = whole.document
        if opened.span is not NO_SPAN:
            note_reasons(opened.span, list_finish_reasons(document, self._priced.call.format))
        micros = await self._settle(whole.usage, failed=False)
        if self._headers is not None:
            model = self._priced.model
            self._headers.add(self._call.context, model, opened, self._times, micros)
        if not whole.is_large:
            return Response(200, orjson.dumps(document), (JSON, NO_STORE))
        await send_large(self._call.send, document)
        return None

    async def _stream(self, opened: OpenCall, stream: LlmStream) -> None:
        """Send the response as it comes."""
        held = stream.resume(opened.held, self._early) if self._early.count else opened.held
        for tape in self.tapes:
            tape.add(held)
            tape.attach(stream)
        self._keep_alive.make = stream.keep_alive
        if not self._is_begun:
            if self._headers is not None:
                self._headers.add(self._call.context, self._priced.model, opened, self._times)
            await self._send_head()
        room = FrameRoom(self._answers, self._payer.account.name)
        relay = Relay(opened.sent.response, stream, self._call.exchange, self._keep_alive, room)
        last, failed = b"", True
        try:
            if opened.failure is not None:
                last = held
                raise opened.failure
            last = await relay.run(held)
            last += stream.finish()
            failed = False
        except (UpstreamError, StreamFailed, AnswerDropped) as error:
            if self._is_gone:
                raise ClientDisconnect from None
            self._times.is_silent = isinstance(error, UpstreamSilent)
            note_error(opened.span, error)
            sent = error.sent if isinstance(error, StreamFailed) else b""
            last += sent + stream.fail(self._describe(opened, error))
        finally:
            self._times.first = relay.first
            note_reasons(opened.span, stream.finish_reasons)
            await self._settle(self._measure(stream, failed), failed=failed)
        await send_end(self._call.send, self._call.exchange, last)

    async def _end_unanswered(self, error: GatewayError) -> None:
        """End a stream of which the client has the head alone."""
        await self._settle(self._measure_unseen(), failed=True)
        last = self._early.fail(describe_error(error))
        await send_end(self._call.send, self._call.exchange, last)

    def _measure_unseen(self) -> TokenUsage | None:
        """Estimated tokens of a call that ended before its answer; None if no provider used any."""
        call, sent = self._priced.call, self._times.sent
        if self._is_gone or self._is_late:
            return estimate_usage(call, 0, time.monotonic() - sent) if sent else None
        return estimate_usage(call, 0) if self._times.is_silent else None

    def _measure(self, stream: LlmStream, failed: bool) -> TokenUsage | None:
        """Return the tokens of a stream; None where it failed without any output."""
        reported, seen, unseen_seconds = stream.usage, stream.text_bytes, 0.0
        has_reported = reported is not None and reported.output > 0
        if self._is_gone or self._is_late:
            if not has_reported:
                unseen_seconds = (self._times.first or time.monotonic()) - self._times.sent
        elif failed and not (seen or has_reported or self._times.is_silent):
            return None
        if reported is not None and stream.ended:
            # even a failure that the provider itself reports has its final counts
            return complete_usage(self._priced.call, reported, seen)
        return complete_broken_usage(self._priced.call, reported, seen, unseen_seconds)

    def _describe(
        self, opened: OpenCall, error: UpstreamError | StreamFailed | AnswerDropped
    ) -> ErrorForm:
        """Return the words for the last frame of a stream that fails."""
        if self._is_late:
            return describe_error(_make_late())
        if isinstance(error, AnswerDropped):
            return describe_error(error.error)
        upstream, model = opened.upstream, opened.route.upstream_model
        failure = upstream.note_failure(opened.sent, error, model)
        known = describe_error(translate_error(failure))
        if not isinstance(error, ReportedError):
            return known
        # output was given, so it is no refusal of the input any more (§8.6)
        text = upstream.clean(error.message, model) if error.message else CALL_FAILED
        form = describe_error(UpstreamFailed(text))
        code = error.code if error.code in PUBLIC_CODES else known.response_code
        return replace(form, response_code=code, retry_after=known.retry_after)


def _make_late() -> UpstreamTimeout:
    return UpstreamTimeout(f"The call took longer than its {TIMEOUT} allows.")
