"""One LLM call from its body to the end of its response, in the caller's format.

The call ends with its client: a disconnect closes the upstream connection at once, and the call is
charged for the tokens seen so far (contract §7.4).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
from starlette.requests import ClientDisconnect

from gateway_apiserver.context import Header
from gateway_apiserver.errors import describe_error
from gateway_apiserver.responses import JSON, NO_STORE, Response, send_head
from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.large_bodies import LARGE_BYTES, LargeBodies
from gateway_apiserver.surfaces.llm.credentials import read_credentials
from gateway_apiserver.surfaces.llm.prompt_files import PromptFiles
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.api.errors import (
    GatewayError,
    InvalidRequest,
    UpstreamFailed,
    UpstreamRateLimited,
)
from gateway_core.billing.counters import Hold
from gateway_core.llm.formats.calls import Format, InvalidAnswer, LlmCall, TokenUsage
from gateway_core.llm.formats.sse import StreamBroken, StreamError, StreamFailed, keep_alive
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.formats.usage import estimate_usage
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.service import LlmService, OpenCall, PricedCall, translate_error
from gateway_core.providers.upstream import UpstreamError

MOST_BODY_BYTES = 32 * 1024 * 1024
MOST_USUAL_BYTES = 4 * 1024 * 1024
MOST_LARGEST = 2
"""Bodies beyond 4 MiB that are held at once: parsed, such a one takes up to six times its bytes."""
MOST_ANSWER_BYTES = 32 * 1024 * 1024
KEEP_ALIVE_SECONDS = 15.0
SPARE_LEVELS = 32
"""Levels of nesting that translations add at most; the encoder takes 254 in all."""

_EVENT_STREAM: Sequence[Header] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_JSON_STREAM: Sequence[Header] = (JSON, *_EVENT_STREAM[1:])

Read = Callable[[dict[str, Any], int], LlmCall]
"""Validates a body, given its size in bytes."""


class LlmCalls:
    """Admits LLM calls and carries their responses."""

    def __init__(self, admission: Admission, service: LlmService, files: PromptFiles) -> None:
        self._admission = admission
        self._service = service
        self._files = files
        self._bodies = LargeBodies(most_bytes=MOST_USUAL_BYTES)
        self._largest = LargeBodies(MOST_LARGEST, most_bytes=MOST_BODY_BYTES)

    async def serve(self, call: Call, read: Read) -> Response | None:
        """Admit and answer a call whose body `read` validates."""
        async with AsyncExitStack() as slots:
            headers = read_credentials(call.scope)
            payer = await self._admission.authenticate(headers, call.context, writes=False)
            priced, problem = await capture(self._prepare(call, payer, read, slots))
            hold = None if priced is None else self._service.make_hold(priced, payer)
            await self._admission.reserve(payer, call.context, hold, problem)
            assert priced is not None, "its problem was raised"
            assert hold is not None
            exchange = _Exchange(self._service, call, payer, priced, hold, slots.aclose)
            del priced
            return await exchange.run()

    async def _prepare(
        self, call: Call, payer: Payer, read: Read, slots: AsyncExitStack
    ) -> PricedCall:
        account = payer.account.name
        # one of an undeclared length is of the usual size, or refused
        is_largest = call.declared_length > MOST_USUAL_BYTES
        bodies = self._largest if is_largest else self._bodies
        parsed, size = await bodies.read(call, account, slots, partial(_read_shallow, read))
        is_large = size > LARGE_BYTES
        # the model first: a guardrail's refusal precedes that of a file (§0.9)
        priced = self._service.price(parsed, payer, is_large=is_large)
        if not parsed.files:
            return priced
        if not is_largest:
            await self._largest.take_slot(account, slots)
        inlined = await self._files.inline(parsed, account)
        return self._service.price(inlined, payer, is_large=True)


def _read_shallow(read: Read, body: dict[str, Any], size: int) -> tuple[LlmCall, int]:
    """The call of a body that is not nested too deeply to be translated, and its size."""
    deep: Any = body
    for _ in range(SPARE_LEVELS):
        deep = [deep]
    try:
        orjson.dumps(deep)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    return read(body, size), size


class _Exchange:
    """An admitted call, from its reservation to its settlement."""

    def __init__(
        self,
        service: LlmService,
        call: Call,
        payer: Payer,
        priced: PricedCall,
        hold: Hold,
        free_slots: Callable[[], Awaitable[None]],
    ) -> None:
        self._free_slots = free_slots
        self._service = service
        self._call = call
        self._payer = payer
        self._priced = priced
        self._hold = hold
        self._times = CallTimes(time.monotonic())
        self._opened: OpenCall | None = None
        self._is_gone = False
        self._is_settled = False

    async def run(self) -> Response | None:
        """Carry the call out and settle it; the response, or None where it was sent."""
        self._service.begin(self._payer, self._hold)
        opening = asyncio.ensure_future(
            self._service.open(self._priced, self._payer.account.name, self._times)
        )
        leaving = asyncio.ensure_future(self._watch_client(opening))
        try:
            self._opened = await self._open(opening)
            if self._is_gone:
                # it left in the moment in which the provider answered
                raise ClientDisconnect
            # the body is sent and dropped, so another large one may come while the answer streams
            self._priced = replace(self._priced, call=self._opened.exchange.call)
            await self._free_slots()
            if self._priced.call.stream:
                await self._stream(self._opened)
                return None
            return await self._answer(self._opened)
        finally:
            leaving.cancel()
            if self._opened is not None:
                self._opened.sent.close()
            if not self._is_settled:
                # a provider works on the prompt of a client that leaves before the first output
                left = self._is_gone and self._times.sent > 0
                used = estimate_usage(self._priced.call, 0) if left else None
                await self._settle(used, failed=True)

    async def _open(self, opening: "asyncio.Future[OpenCall]") -> OpenCall:
        try:
            return await opening
        except asyncio.CancelledError:
            if self._is_gone:
                raise ClientDisconnect from None
            if not opening.cancel() and opening.exception() is None:
                # the process ends in the moment in which the provider answered
                opening.result().sent.close()
            raise
        except GatewayError as error:
            if isinstance(error, UpstreamRateLimited):
                # the provider's limit is the cause, which rate headers do not describe (§12.4)
                self._call.context.rate = None
            raise

    async def _watch_client(self, opening: "asyncio.Future[OpenCall]") -> None:
        """Wait until the client has left, and end the upstream call."""
        while (await self._call.receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        opening.cancel()
        if self._opened is not None:
            self._opened.sent.response.abort()

    async def _settle(self, used: TokenUsage | None, *, failed: bool) -> None:
        self._is_settled = True
        self._observe(used or TokenUsage(0, 0), failed=failed)
        await self._service.end(
            self._payer,
            self._priced,
            self._hold,
            used,
            failed=failed,
            reached=self._times.reached,
        )

    def _observe(self, used: TokenUsage, *, failed: bool) -> None:
        opened, times = self._opened, self._times
        if opened is None:
            return
        times.ended = time.monotonic()
        outcome = "completed"
        if failed:
            outcome = "client_gone" if self._is_gone else "failed"
        model, provider = self._priced.model.model_id, opened.route.provider_name
        self._service.metrics.count_call(model, provider, outcome, times, used)

    async def _answer(self, opened: OpenCall) -> Response:
        """The whole response of a call without a stream."""
        try:
            raw = await opened.sent.response.read(MOST_ANSWER_BYTES)
            document, used = opened.exchange.complete(raw)
        except (UpstreamError, InvalidAnswer) as error:
            if self._is_gone:
                raise ClientDisconnect from None
            if isinstance(error, UpstreamError):
                opened.sent.fail()
            raise _translate(error) from error
        await self._settle(used, failed=False)
        return Response(200, orjson.dumps(document), (JSON, NO_STORE))

    async def _stream(self, opened: OpenCall) -> None:
        """Send the response as it comes."""
        call, send = self._priced.call, self._call.send
        stream = opened.exchange.open_stream()
        is_events = call.format is not Format.GOOGLE or call.event_stream
        await send_head(send, 200, _EVENT_STREAM if is_events else _JSON_STREAM)
        beat = _KeepAlive(self._call, call.format) if is_events else None
        last, failed = b"", True
        try:
            while data := await opened.sent.response.read_some():
                frames = stream.feed(data)
                if stream.ended:
                    last = frames
                    break
                if frames:
                    self._times.first = self._times.first or time.monotonic()
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
                    if beat is not None:
                        beat.note()
                    if self._is_gone:
                        raise ClientDisconnect
            last += stream.finish()
            failed = stream.failed
        except (UpstreamError, StreamFailed) as error:
            if self._is_gone:
                raise ClientDisconnect from None
            if not isinstance(error, StreamBroken):
                # what is not of the format may be the request's doing
                opened.sent.fail()
            sent = error.sent if isinstance(error, StreamFailed) else b""
            known = self._explain(opened, error)
            last += sent + stream.fail(describe_error(known))
        finally:
            if beat is not None:
                beat.stop()
            await self._settle(self._measure(stream, failed), failed=failed)
        await send({"type": "http.response.body", "body": last})

    def _measure(self, stream: LlmStream, failed: bool) -> TokenUsage | None:
        """The tokens of a stream; None where it failed without any output."""
        reported, seen = stream.usage, stream.text_bytes
        if failed and not self._is_gone and not seen and (reported is None or not reported.output):
            return None
        estimated = estimate_usage(self._priced.call, seen)
        if reported is None:
            return estimated
        # a stream that broke off may have reported its prompt alone
        return replace(
            reported, output=max(reported.output, estimated.output) if failed else reported.output
        )

    def _explain(self, opened: OpenCall, error: UpstreamError | StreamFailed) -> GatewayError:
        if isinstance(error, StreamError):
            message = opened.upstream.clean(error.message, opened.route.upstream_model)
            return UpstreamFailed(message)
        return _translate(error)


class _KeepAlive:
    """Sends a keep-alive of the format whenever a stream is silent for 15 s (§7.2, §8.5)."""

    def __init__(self, call: Call, format_: Format) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = call.send
        self._frame = keep_alive(format_)
        self._last = self._loop.time()
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._look)
        self._sending: asyncio.Future[None] | None = None

    def note(self) -> None:
        """Note that frames have just been sent."""
        self._last = self._loop.time()

    def stop(self) -> None:
        """Send no more."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = self._last + KEEP_ALIVE_SECONDS
        if now >= due and (self._sending is None or self._sending.done()):
            # a client that takes nothing leaves the last one pending, and gets no further one
            message = {"type": "http.response.body", "body": self._frame, "more_body": True}
            self._sending = asyncio.ensure_future(self._send(message))
            self._last = now
            due = now + KEEP_ALIVE_SECONDS
        self._timer = self._loop.call_at(max(due, now + 1.0), self._look)


def _translate(error: UpstreamError | StreamFailed | InvalidAnswer) -> GatewayError:
    if isinstance(error, UpstreamError):
        return translate_error(error)
    return UpstreamFailed("The model's provider failed on this call.")
