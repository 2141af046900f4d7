"""Attempts of a call at several models: a client's fallbacks and its time to the first byte.

A model that does not begin in the client's time is abandoned, which is no failure of its provider:
the circuit breaker does not count it. Its provider may have worked on the prompt, so the client
pays for that as after a disconnect, and the reservation covers all models.
"""

import time
from collections.abc import Awaitable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from gateway_core.admission.admission import Payer
from gateway_core.api.errors import GatewayError, InvalidRequest, UpstreamTimeout
from gateway_core.concurrency import WaitLimit
from gateway_core.llm.metrics import CallTimes
from gateway_core.llm.opening import CallContext, OpenCall
from gateway_core.llm.priced import Attempts, PricedCall
from gateway_core.llm.service import LlmService


def plan_attempts(
    service: LlmService,
    priced: PricedCall,
    payer: Payer,
    model_ids: Sequence[str],
    *,
    total_seconds: float | None = None,
    first_byte_seconds: float | None = None,
) -> PricedCall:
    """Return the call with its fallbacks, in order, and the reservation of the dearest of them.

    Raises as `LlmService.price`, for any of the models.
    """
    fallbacks = tuple(
        service.price(replace(priced.call, model_id=model_id), payer, is_large=priced.is_large)
        for model_id in model_ids
    )
    all_calls = (priced, *fallbacks)
    micros = max(each.micros for each in all_calls)
    if first_byte_seconds is not None:
        micros += sum(service.price_unseen(each, first_byte_seconds) for each in all_calls)
    return replace(priced, attempts=Attempts(fallbacks, micros, total_seconds, first_byte_seconds))


async def open_first(service: LlmService, priced: PricedCall, context: CallContext) -> OpenCall:
    """Open the call at the first of its models that answers.

    The next model is tried after any failure but the refusal of the input (400). Notes in the times
    of `context` what abandoned prompts cost. Raises GatewayError: that of the last model.
    """
    attempts = priced.attempts
    assert attempts is not None
    failure: GatewayError | None = None
    *others, last = (priced, *attempts.fallbacks)
    for candidate in (*others, last):
        opening = service.open(candidate, context, has_fallbacks=candidate is not last)
        try:
            return await _open_in_time(service, candidate, opening, context.times, attempts)
        except InvalidRequest:
            raise
        except GatewayError as error:
            failure = error
    assert failure is not None
    raise failure


async def _open_in_time(
    service: LlmService,
    candidate: PricedCall,
    opening: Awaitable[OpenCall],
    times: CallTimes,
    attempts: Attempts,
) -> OpenCall:
    """Open the call at one model; raises UpstreamTimeout where the client's time has passed."""
    seconds = attempts.first_byte_seconds
    times.is_silent = False
    try:
        times.limit = None if seconds is None else WaitLimit(seconds)
        async with times.limit or nullcontext():
            return await opening
    except BaseException as error:
        if times.sent > 0:
            # abandoned by its client, before or after the first byte
            unseen = time.monotonic() - times.sent
            unseen = unseen if seconds is None or not times.limit else min(unseen, seconds)
            times.abandoned += service.price_unseen(candidate, unseen)
            times.note_failure()
        if isinstance(error, TimeoutError):
            model_id = candidate.model.model_id
            text = f"Model {model_id} did not begin to answer in the time that the call allows."
            raise UpstreamTimeout(text) from error
        raise
