"""Admission of LLM calls: from the body to the reservation, in the caller's format."""

import time
from functools import partial

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.large_bodies import LARGE_BYTES, LargeBodies, take_usual_body
from gateway_apiserver.surfaces.llm.cached import CachedCalls
from gateway_apiserver.surfaces.llm.call_headers import (
    CallHeaders,
)
from gateway_apiserver.surfaces.llm.content_log import log_content, show_prompt
from gateway_apiserver.surfaces.llm.credentials import read_credentials
from gateway_apiserver.surfaces.llm.large_answers import (
    LargeAnswers,
)
from gateway_apiserver.surfaces.llm.options import apply_options
from gateway_apiserver.surfaces.llm.prompt_files import PromptFiles
from gateway_apiserver.surfaces.llm.running import RunningCall
from gateway_apiserver.surfaces.llm.shallow import Read, read_shallow
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.service import LlmService
from gateway_core.tasks.validation import parse_exact_body
from gateway_web.responses import Response

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
            exchange = RunningCall(
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
