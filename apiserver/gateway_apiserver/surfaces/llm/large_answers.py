"""Answers and frames of several MiB, as images and logprobs make them: few in memory at once.

Parsed, such an answer takes several times its bytes, and a client may be slow to take it.
"""

import asyncio
from typing import Any

import orjson
from starlette.types import Send

from gateway_core.api.errors import GatewayError, Unavailable, UpstreamFailed
from gateway_core.fair_semaphore import AcquireTimeout, FairSemaphore, HeldUnits
from gateway_core.llm.formats.sse import LARGE_FRAME_BYTES, MOST_FRAME_BYTES
from gateway_core.llm.response import Response
from gateway_web.responses import JSON, NO_STORE, send_head

LARGE_ANSWER_BYTES = 256 * 1024
"""From so many on an answer is large."""
MOST_BYTES = MOST_FRAME_BYTES
UNIT_BYTES = 1024 * 1024
MOST_UNITS = 64
"""MiB of large answers and frames that one process holds at once, half of them for one account."""
WAIT_SECONDS = 30.0
"""Time for which an answer or a frame waits for room; its provider waits meanwhile."""


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
        """Return the body. Room for a large one is put into `slots` and held as long as it is.

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
                await self.take_room(account, slots, needed - units, size)
                units = needed
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def take_room(self, account: str, slots: HeldUnits, units: int, size: int) -> None:
        """Put `units` more into `slots`, after `size` bytes of an answer came. AnswerDropped."""
        try:
            await slots.take(self._room, account, units)
        except AcquireTimeout:
            text = "Too many large answers are under way, of this account or of all."
            raise AnswerDropped(size, Unavailable(text)) from None


class FrameRoom:
    """Room for the large frames of one stream, which are in memory until they are whole."""

    def __init__(self, answers: LargeAnswers, account: str) -> None:
        self._answers = answers
        self._account = account
        self._slots = HeldUnits()
        self._units = 0

    def has(self, size: int) -> bool:
        """Return whether `size` bytes of a frame may be in memory.

        The room of an earlier frame is returned.
        """
        if size > LARGE_FRAME_BYTES:
            return size <= self._units * UNIT_BYTES
        if self._units:
            self.release()
        return True

    async def take(self, size: int) -> None:
        """Wait for room for `size` bytes and the next ones. AnswerDropped."""
        units = size // UNIT_BYTES + 1
        await self._answers.take_room(self._account, self._slots, units - self._units, size)
        self._units = units

    def release(self) -> None:
        """Return the room. Repeatable."""
        self._slots.release()
        self._units = 0


async def send_large(send: Send, document: dict[str, Any]) -> None:
    """Send a large answer; returns when its client has taken nearly all of it."""
    body = await asyncio.to_thread(orjson.dumps, document)
    document.clear()
    await send_head(send, 200, (JSON, NO_STORE, (b"content-length", b"%d" % len(body))))
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # a server waits for its client before it takes more
    await send({"type": "http.response.body", "body": b""})
