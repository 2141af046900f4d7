"""`ModerationUpstream` without a provider: scores follow from the text, errors from a script."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from gateway_core.providers.moderation import CATEGORIES, complete_answer, read_call
from gateway_core.providers.upstream import ModerationUpstream, UpstreamBusy, UpstreamError

FLAGGED_WORD = "kill"
"""A text with it is flagged as violence."""


class FakeModeration(ModerationUpstream):
    """Raises the `errors` first, then judges; `bodies` are those that it was asked.

    `gate` holds calls up while it is not set.
    """

    limit = 64
    """Calls that it would take at a time; it takes any number."""

    def __init__(self, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.errors: deque[UpstreamError] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    async def moderate(
        self, body: Mapping[str, Any], *, traceparent: str | None = None
    ) -> dict[str, Any]:
        if self.closed:
            raise UpstreamBusy("The provider is being reconfigured.")
        self.bodies.append(dict(body))
        await asyncio.sleep(self.latency)
        await self.gate.wait()
        if self.errors:
            raise self.errors.popleft()
        call = read_call(body)
        texts = call.input if isinstance(call.input, list) else [call.input]
        judged = texts if call.results == len(texts) else [str(call.input)]
        return complete_answer({"results": [judge(str(text)) for text in judged]}, call)

    async def close(self) -> None:
        self.closed = True


def judge(text: str) -> dict[str, Any]:
    """One result."""
    bad = FLAGGED_WORD in text
    flags = {name: bad and name == "violence" for name in CATEGORIES}
    scores = {name: 0.9 if flags[name] else 0.1 for name in CATEGORIES}
    return {"flagged": bad, "categories": flags, "category_scores": scores}
