"""One LLM call from its body to the end of its response, in the caller's format.

The call ends with its client: a disconnect closes the upstream connection at once, and the call is
charged for the tokens seen so far (contract §7.4).
"""

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.large_bodies import LARGE_BYTES, LargeBodies, take_usual_body
from gateway_apiserver.surfaces.llm.cached import CachedCalls, Tape
from gateway_apiserver.surfaces.llm.call_headers import (
    CallHeaders,
    choose_stream_head,
    has_events,
    name_dropped,
)
from gateway_apiserver.surfaces.llm.content_log import log_content, show_prompt
from gateway_apiserver.surfaces.llm.credentials import read_credentials
from gateway_apiserver.surfaces.llm.large_answers import (
    LARGE_ANSWER_BYTES,
    AnswerDropped,
    LargeAnswers,
    send_large,
)
from gateway_apiserver.surfaces.llm.options import TIMEOUT, apply_options
from gateway_apiserver.surfaces.llm.prompt_files import PromptFiles
from gateway_apiserver.surfaces.llm.relay import Relay
from gateway_apiserver.surfaces.llm.shallow import Read, read_shallow
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.api.errors import (
    GatewayError,
    UpstreamFailed,
    UpstreamRateLimited,
    UpstreamTimeout,
)
from gateway_core.billing.counters import Hold
from gateway_core.concurrency import HeldUnits
from gateway_core.llm.attempts import open_first
from gateway_core.llm.formats.answers import list_finish_reasons
from gateway_core.llm.formats.calls import NO_TOKENS, InvalidAnswer, TokenUsage
from gateway_core.llm.formats.sse import StreamBroken, StreamError, StreamFailed, keep_alive
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.usage import complete_usage, estimate_usage
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.service import LlmService, OpenCall, PricedCall, translate_error
from gateway_core.llm.spans import end_attempt, note_error, note_reasons
from gateway_core.observability.tracing import NO_SPAN
from gateway_core.providers.catalog import Model
from gateway_core.providers.upstream import UpstreamError, UpstreamSilent
from gateway_core.tasks.validation import parse_exact_body
from gateway_web.errors import NO_RETRY, describe_error
from gateway_web.http1.exchange import ignore
from gateway_web.responses import JSON, NO_STORE, Response, send_end, send_head

MOST_BODY_BYTES = 32 * 1024 * 1024
MOST_USUAL_BYTES = 4 * 1024 * 1024
LARGEST_UNIT = 1024 * 1024
MOST_LARGEST = 64
"""MiB of bodies beyond 4 MiB, and of files in prompts, that are held at once, half of them for one
account: parsed, a body takes up to six times its bytes."""


class LlmCalls:
    """Admits LLM calls and carries their responses."""

    def __init__(
        self,
        admission: Admission,
        service: LlmService,
        files: PromptFiles,
        headers: CallHeaders | None = None,
        cached: CachedCalls | None = None,
    ) -> None:
        self._cached = cached
        self._admission = admission
        self._service = service
        self._files = files
        self._headers = headers
        self._bodies = LargeBodies(most_bytes=MOST_USUAL_BYTES)
        self._answers = LargeAnswers()
        self._largest = LargeBodies(
            MOST_LARGEST, most_bytes=MOST_BODY_BYTES, unit_bytes=LARGEST_UNIT
        )

    async def serve(self, call: Call, read: Read) -> Response | None:
        """Admit and answer a call whose body `read` validates."""
        began = time.monotonic()
        with HeldUnits() as slots:
            headers = read_credentials(call.scope)
            payer = await self._admission.authenticate(headers, call.context, writes=False)
            priced, problem = await capture(self._prepare(call, payer, read, slots))
            lookup, scope = None, payer.policy.cache
            if scope is not None and priced is not None and self._cached is not None:
                lookup = await self._cached.find(call, payer, priced, scope)
                if lookup is not None and lookup.hit is not None:
                    priced = lookup.hit.priced
            hold = None if priced is None else self._service.make_hold(priced, payer)
            await self._admission.reserve(payer, call.context, hold, problem)
            assert priced is not None, "its problem was raised"
            assert hold is not None
            # the gateway's time: what it waited for the client is none
            times = CallTimes(began + call.context.waited, parent=call.context.span)
            exchange = _RunningCall(
                self._service,
                call,
                payer,
                priced,
                hold,
                times,
                slots,
                self._answers,
                self._headers,
            )
            is_logged = payer.caller.key.logs_content
            prompt = show_prompt(priced.call.body) if is_logged else ""
            del priced
            if lookup is None or self._cached is None:
                carrying = exchange.run()
            else:
                carrying = self._cached.serve(call, lookup, payer, hold, exchange)
            if is_logged:
                return await log_content(call.context, prompt, exchange, carrying)
            return await carrying

    async def _prepare(self, call: Call, payer: Payer, read: Read, slots: HeldUnits) -> PricedCall:
        account, is_largest = payer.account.name, False
        raw = take_usual_body(call)
        if raw is not None:
            parsed, size = read_shallow(read, parse_exact_body(raw), len(raw))
        else:
            # one of an undeclared length is of the usual size, or refused
            is_largest = call.declared_length > MOST_USUAL_BYTES
            bodies = self._largest if is_largest else self._bodies
            parsed, size = await bodies.read(call, account, slots, partial(read_shallow, read))
        # the model first: a guardrail's refusal precedes that of a file (§0.9)
        priced = self._service.price(parsed, payer, is_large=size > LARGE_BYTES)
        if parsed.files:
            found = await self._files.find(parsed, account)
            if not is_largest:
                await self._largest.take_slot(account, slots, size + found.inlined_bytes)
            inlined = await self._files.inline(parsed, found)
            priced = self._service.price(inlined, payer, is_large=True)
        return apply_options(call.headers, self._service, priced, payer)


class _RunningCall:
    """An admitted call, from its reservation to its settlement."""

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
        self._is_gone = False
        self._is_late = False
        """Whether the client's own time for the call has passed."""
        self._is_settled = False
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
            self._opened = await self._open()
            # the body is sent and dropped, so another large one may come while the answer streams
            self._priced = self._opened.priced
            self._slots.release()
            if self._opened.exchange.dropped:
                self._call.context.headers.append(name_dropped(self._opened.exchange.dropped))
            if self._priced.call.stream:
                await self._stream(self._opened)
                return None
            return await self._answer(self._opened)
        finally:
            # the connection outlives the call, and would keep its body
            self._call.exchange.on_gone = ignore
            if timer is not None:
                timer.cancel()
            if self._opened is not None:
                self._opened.sent.close()
            if not self._is_settled:
                await self._settle(self._measure_unseen(), failed=True)

    async def _open(self) -> OpenCall:
        if self._call.exchange.is_gone:
            raise ClientDisconnect
        task = self._opening = asyncio.current_task()
        try:
            account = self._payer.account.name
            if self._priced.attempts is None:
                return await self._service.open(self._priced, account, self._times, self._slots)
            return await open_first(self._service, self._priced, account, self._times, self._slots)
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
        """The error of a call that its client has ended, by leaving or by its own time-out."""
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
        """The whole response of a call without a stream; None where it is large, and sent."""
        response, account = opened.sent.response, self._payer.account.name
        try:
            raw = await self._answers.read(response, account, self._slots)
            is_large = len(raw) > LARGE_ANSWER_BYTES
            complete = opened.exchange.complete
            document, used = await asyncio.to_thread(complete, raw) if is_large else complete(raw)
        except AnswerDropped as dropped:
            # the provider has written it
            used = estimate_usage(self._priced.call, dropped.size)
            await self._settle(used, failed=True)
            raise dropped.error from dropped
        except (UpstreamError, InvalidAnswer) as error:
            if self._is_gone or self._is_late:
                raise self._find_end() from None
            if isinstance(error, UpstreamError):
                opened.sent.fail()
                self._times.is_silent = isinstance(error, UpstreamSilent)
            note_error(opened.span, error)
            raise _translate(error) from error
        if opened.span is not NO_SPAN:
            note_reasons(opened.span, list_finish_reasons(document, self._priced.call.format))
        micros = await self._settle(used, failed=False)
        if self._headers is not None:
            model = self._priced.model
            self._headers.add(self._call.context, model, opened, self._times, micros)
        if not is_large:
            return Response(200, orjson.dumps(document), (JSON, NO_STORE))
        del raw
        await send_large(self._call.send, document)
        return None

    async def _stream(self, opened: OpenCall) -> None:
        """Send the response as it comes."""
        call, send = self._priced.call, self._call.send
        stream = opened.exchange.open_stream()
        for tape in self.tapes:
            tape.attach(stream)
        if self._headers is not None:
            self._headers.add(self._call.context, self._priced.model, opened, self._times)
        await send_head(send, 200, choose_stream_head(call))
        beat = keep_alive(call.format) if has_events(call) else b""
        relay = Relay(opened.sent.response, stream, self._call.exchange, beat)
        last, failed = b"", True
        try:
            last = await relay.run()
            last += stream.finish()
            failed = stream.failed
        except (UpstreamError, StreamFailed) as error:
            if self._is_gone:
                raise ClientDisconnect from None
            if not (self._is_late or isinstance(error, StreamBroken)):
                # what is not of the format may be the request's doing
                opened.sent.fail()
            self._times.is_silent = isinstance(error, UpstreamSilent)
            note_error(opened.span, error)
            sent = error.sent if isinstance(error, StreamFailed) else b""
            known = _make_late() if self._is_late else self._explain(opened, error)
            last += sent + stream.fail(describe_error(known))
        finally:
            self._times.first = relay.first
            note_reasons(opened.span, stream.finish_reasons)
            await self._settle(self._measure(stream, failed), failed=failed)
        await send_end(send, self._call.exchange, last)

    def _measure_unseen(self) -> TokenUsage | None:
        """Estimated tokens of a call that ended before its answer; None if no provider used any."""
        call, sent = self._priced.call, self._times.sent
        if self._is_gone or self._is_late:
            return estimate_usage(call, 0, time.monotonic() - sent) if sent else None
        return estimate_usage(call, 0) if self._times.is_silent else None

    def _measure(self, stream: LlmStream, failed: bool) -> TokenUsage | None:
        """The tokens of a stream; None where it failed without any output."""
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
        estimated = estimate_usage(self._priced.call, seen, unseen_seconds)
        if reported is None:
            return estimated
        # a stream that broke off may have reported its prompt alone, or its output up to then
        if reported.input and has_reported and reported.output >= estimated.output:
            return reported
        return replace(
            reported,
            input=reported.input or estimated.input,
            output=max(reported.output, estimated.output),
            estimated=True,
        )

    def _explain(self, opened: OpenCall, error: UpstreamError | StreamFailed) -> GatewayError:
        if isinstance(error, StreamError):
            message = opened.upstream.clean(error.message, opened.route.upstream_model)
            return UpstreamFailed(message)
        return _translate(error)


def _make_late() -> UpstreamTimeout:
    return UpstreamTimeout(f"The call took longer than its {TIMEOUT} allows.")


def _translate(error: UpstreamError | StreamFailed | InvalidAnswer) -> GatewayError:
    if isinstance(error, UpstreamError):
        return translate_error(error)
    return UpstreamFailed("The model's provider failed on this call.")
