"""Whole answers of several MiB, as images and logprobs make them: few in memory at once.

Parsed, such an answer takes several times its bytes, and a client may be slow to take it.
"""

import asyncio
from typing import Any

import orjson
from starlette.types import Send

from gateway_core.api.errors import GatewayError, Unavailable, UpstreamFailed
from gateway_core.concurrency import AcquireTimeout, FairSemaphore, HeldUnits
from gateway_core.llm.response import Response
from gateway_web.responses import JSON, NO_STORE, send_head

LARGE_ANSWER_BYTES = 256 * 1024
"""From so many on an answer is large."""
MOST_BYTES = 32 * 1024 * 1024
UNIT_BYTES = 1024 * 1024
MOST_UNITS = 64
"""MiB of large answers that one process holds at once, half of them for one account."""
WAIT_SECONDS = 30.0
"""How long an answer waits for room; its provider waits meanwhile."""


class AnswerDropped(Exception):
    """An answer that the provider has written, of which `size` bytes came, and `error` instead."""

    def __init__(self, size: int, error: GatewayError) -> None:
        super().__init__(error.message)
        self.size = size
        self.error = error


class LargeAnswers:
    """Reads answers; of all accounts' large ones a few are held at once."""

    def __init__(self) -> None:
        self._room = FairSemaphore(
            MOST_UNITS, alone=MOST_UNITS, per_holder=MOST_UNITS // 2, seconds=WAIT_SECONDS
        )

    async def read(self, response: Response, account: str, slots: HeldUnits) -> bytes:
        """The body. Room for a large one is put into `slots`, to be held for as long as it is.

        Raises AnswerDropped where it is too long or there is no room; else as
        `Response.read_some`.
        """
        if response.source is None and response.size <= LARGE_ANSWER_BYTES:
            # the usual case: it came with its head
            return response.take()
        pieces: list[bytes] = []
        size = units = 0
        while piece := await response.read_some():
            size += len(piece)
            if size > MOST_BYTES:
                text = "The model's provider has sent too long an answer."
                raise AnswerDropped(size, UpstreamFailed(text))
            needed = 0 if size <= LARGE_ANSWER_BYTES else -(-size // UNIT_BYTES)
            if needed > units:
                try:
                    await slots.take(self._room, account, needed - units)
                except AcquireTimeout:
                    text = "Too many large answers are under way, of this account or of all."
                    raise AnswerDropped(size, Unavailable(text)) from None
                units = needed
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def send_large(send: Send, document: dict[str, Any]) -> None:
    """Send a large answer; returns when its client has taken nearly all of it."""
    body = await asyncio.to_thread(orjson.dumps, document)
    document.clear()
    await send_head(send, 200, (JSON, NO_STORE, (b"content-length", b"%d" % len(body))))
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # a server waits for its client before it takes more
    await send({"type": "http.response.body", "body": b""})
