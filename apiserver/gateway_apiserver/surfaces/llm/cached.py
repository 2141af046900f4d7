"""LLM calls of keys with a cache: a kept answer instead of a provider's, and answers to keep."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.llm.call_headers import HIT, MISS, CallHeaders, choose_stream_head
from gateway_core.accounts.guardrails import CacheScope
from gateway_core.admission.admission import Payer
from gateway_core.billing.counters import Hold
from gateway_core.llm.cache import MOST_BYTES, AnswerCache, Place, find_place, is_worth_keeping
from gateway_core.llm.formats.calls import Format
from gateway_core.llm.formats.streams import LlmStream
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.service import LlmService
from gateway_core.providers.catalog import Model
from gateway_web.responses import JSON, NO_STORE, Response, send_head


@dataclass(frozen=True, slots=True)
class Hit:
    """A call, which costs nothing, and the answer that was kept for it."""

    priced: PricedCall
    answer: bytes


@dataclass(frozen=True, slots=True)
class Lookup:
    """A call of a key with a cache, and what was found for it."""

    place: Place
    model: Model
    format: Format
    stream: bool
    hit: Hit | None


class Tape:
    """Remembers the frames of a stream: all or none of at most so many bytes, or `cuts` them."""

    def __init__(self, most_bytes: int, *, cuts: bool = False) -> None:
        self._left = most_bytes
        self._cuts = cuts
        self._frames: list[bytes] = []

    @property
    def content(self) -> bytes | None:
        """The frames; None where they are too many."""
        return b"".join(self._frames) if self._left >= 0 or self._cuts else None

    def attach(self, stream: LlmStream) -> None:
        """Remember the frames that a stream returns from now on."""
        # replaces methods of this one: a test within them would cost every stream
        methods: Any = stream
        methods.feed = partial(self._pass, methods.feed)
        methods.finish = partial(self._pass, methods.finish)
        # those of Responses are numbered
        methods.keep_alive = partial(self._pass, methods.keep_alive)

    def add(self, frames: bytes) -> None:
        """Remember frames."""
        if self._left >= 0:
            kept = frames[: self._left] if self._cuts else frames
            self._frames.append(kept)
            self._left -= len(frames)
            if self._left < 0 and not self._cuts:
                self._frames.clear()

    def _pass(self, method: Any, *arguments: bytes) -> bytes:
        frames: bytes = method(*arguments)
        self.add(frames)
        return frames


class AdmittedCall(Protocol):
    """An admitted call that is to be carried out."""

    succeeded: bool
    tapes: tuple[Tape, ...]

    @property
    def model(self) -> Model:
        """The model that has answered."""
        ...

    async def run(self) -> Response | None:
        """Carry the call out; the response, or None where it was sent."""
        ...


class CachedCalls:
    """Answers calls from the cache, and keeps the answers of others."""

    def __init__(
        self, cache: AnswerCache, service: LlmService, headers: CallHeaders | None
    ) -> None:
        self._cache = cache
        self._service = service
        self._headers = headers

    async def find(
        self, call: Call, payer: Payer, priced: PricedCall, scope: CacheScope
    ) -> Lookup | None:
        """Return what is kept for a call; None where the client or the call's parameters forbid it.

        Large bodies, also those with files, are neither looked up nor kept.
        """
        directives = _read_directives(call)
        if priced.is_large or "no-store" in directives:
            return None
        request, model, account = priced.call, priced.model, payer.account
        place = find_place(request, model, scope, account=account.name, account_id=account.id)
        if place is None:
            return None
        answer = None if "no-cache" in directives else await self._cache.find(place)
        self._service.metrics.count_lookup(model.model_id, is_hit=answer is not None)
        hit = None
        if answer is not None:
            hit = Hit(replace(priced, micros=0, attempts=None), answer)
        return Lookup(place, model, request.format, request.stream, hit)

    async def serve(
        self, call: Call, lookup: Lookup, payer: Payer, hold: Hold, admitted: AdmittedCall
    ) -> Response | None:
        """Answer an admitted call, by `admitted` where nothing was found."""
        hit, context = lookup.hit, call.context
        context.headers.append(MISS if hit is None else HIT)
        if hit is None:
            return await self._carry_out(lookup, admitted)
        self._service.begin(payer, hold)
        await self._service.end(
            payer, hit.priced, hold, None, failed=False, reached=False, from_cache=True
        )
        if self._headers is not None:
            self._headers.add_cached(context, lookup.model)
        if not lookup.stream:
            return Response(200, hit.answer, (JSON, NO_STORE))
        for tape in admitted.tapes:
            tape.add(hit.answer)
        await send_head(call.send, 200, choose_stream_head(hit.priced.call))
        await call.send({"type": "http.response.body", "body": hit.answer})
        return None

    async def _carry_out(self, lookup: Lookup, admitted: AdmittedCall) -> Response | None:
        tape = Tape(MOST_BYTES)
        if lookup.stream:
            admitted.tapes += (tape,)
        response = await admitted.run()
        answer = tape.content
        if response is not None and is_worth_keeping(lookup.format, response.body):
            answer = response.body
        # a fallback's answer is none of the model that the next call asks for
        if answer and admitted.succeeded and admitted.model is lookup.model:
            self._cache.keep(lookup.place, answer)
        return response


def _read_directives(call: Call) -> set[str]:
    """Return the client's `Cache-Control` directives."""
    return {
        directive.strip().lower()
        for name, value in call.headers
        if name == b"cache-control"
        for directive in value.decode("latin-1").split(",")
    }
