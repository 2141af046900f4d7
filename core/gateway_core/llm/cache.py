"""Exact cache of answers: the same request of the same key, or guardrail, gets the same answer.

Off unless a key or guardrail sets `cacheSeconds`. An answer is kept as the client got it, a stream
as its frames. What is kept belongs to one account and one key or guardrail, and to the routes that
the model has at the time. The cache never fails a call: a store that is away or slow is a miss.
"""

import asyncio
import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

import orjson

from gateway_core.accounts.guardrails import CacheScope
from gateway_core.concurrency import WaitLimit
from gateway_core.llm.formats.calls import Format, LlmCall, as_object, as_objects
from gateway_core.providers.catalog import Model
from gateway_core.redis.link import CountersUnavailable

MOST_BYTES = 256 * 1024
"""Of one answer."""
FIND_SECONDS = 0.1
"""How long a call waits for the store."""
REST_SECONDS = 1.0
"""How long the store is left alone after it did not answer."""
MOST_KEEPING = 64
"""Answers on their way to the store: at most 16 MiB."""


class Answers(Protocol):
    """Store of answers, `AnswerStore`. Methods raise CountersUnavailable."""

    async def find(self, digest: str) -> bytes | None:
        """Return the answer, if it is kept."""
        ...

    async def keep(self, account: str, digest: str, answer: bytes, seconds: int) -> bool:
        """Keep an answer for so long, if there is room."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where the answer of a call is kept, and how many seconds."""

    account: str
    digest: str
    seconds: int


class AnswerCache:
    """Finds and keeps answers; for one event loop."""

    def __init__(self, store: Answers) -> None:
        self._store = store
        self._keeping: set[asyncio.Task[None]] = set()
        self._rests_until = 0.0

    async def find(self, place: Place) -> bytes | None:
        """Return the answer kept there; None also while the store does not answer."""
        if self._is_resting:
            return None
        try:
            async with WaitLimit(FIND_SECONDS):
                return await self._store.find(place.digest)
        except (CountersUnavailable, TimeoutError):
            self._rests_until = time.monotonic() + REST_SECONDS
            return None

    def keep(self, place: Place, answer: bytes) -> None:
        """Keep an answer soon, without a wait; drop it where too many are under way."""
        if self._is_resting or len(self._keeping) >= MOST_KEEPING or len(answer) > MOST_BYTES:
            return
        task = asyncio.create_task(self._keep(place, answer))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def close(self) -> None:
        """Wait for what is being kept, and close the store."""
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self._store.close()

    @property
    def _is_resting(self) -> bool:
        return time.monotonic() < self._rests_until

    async def _keep(self, place: Place, answer: bytes) -> None:
        try:
            await self._store.keep(place.account, place.digest, answer, place.seconds)
        except CountersUnavailable:
            self._rests_until = time.monotonic() + REST_SECONDS


def find_place(
    call: LlmCall, model: Model, scope: CacheScope, *, account: str, account_id: int
) -> Place | None:
    """Return the place of a call's answer; None where the call asks for more than tokens.

    What a provider's own tools find, such as a search, changes.
    """
    if call.unpriced:
        return None
    routes = sorted((route.provider_name, route.upstream_model) for route in model.routes)
    parts = [
        account_id,
        scope.subject,
        scope.seconds,
        call.format,
        [model.name, call.model_id, routes],
        [call.stream, call.event_stream],
        call.body,
    ]
    content = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    return Place(account, hashlib.sha256(content).hexdigest(), scope.seconds)


def is_worth_keeping(format_: Format, answer: bytes) -> bool:
    """Return whether a whole answer is complete: a provider may fail with status 200."""
    document = as_object(orjson.loads(answer))
    match format_:
        case Format.CHAT:
            return bool(as_objects(document.get("choices")))
        case Format.RESPONSES:
            return document.get("status") in (None, "completed", "incomplete")
        case Format.GOOGLE:
            return bool(as_objects(document.get("candidates")))
