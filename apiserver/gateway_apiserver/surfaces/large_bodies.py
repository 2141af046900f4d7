"""JSON bodies of several MiB, as images in data URLs make them: few in memory at once.

Parsed, such a body takes several times its bytes, and longer than all other calls of the process
may wait.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from starlette.types import Message

from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.validation import read_json_body
from gateway_core.api.errors import TooLarge, Unavailable
from gateway_core.concurrency import FairSemaphore
from gateway_core.tasks.validation import parse_body

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 256 * 1024
"""From so many on a body is large."""
MOST_AT_ONCE = 8
"""Each is held until the provider has answered, at worst as 45 MiB. An account gets one more only
while it has fewer than are free, so that those whose provider is slow leave one for a newcomer."""
WAIT_SECONDS = 10.0
"""How long a further one waits, as long as one at a provider does for its turn."""
MOST_SIGNS = 400_000
"""Commas and brackets of a large body: it would be all lists, each 27 times what it is in JSON."""
READ_SECONDS = 60.0
"""How long a client may take to send a large body, while others wait for its place."""

_SIGNS = (b"[", b"{", b",")


class LargeBodies:
    """Reads bodies; of all accounts' large ones a few are under way at once."""

    def __init__(
        self,
        most: int = MOST_AT_ONCE,
        wait_seconds: float = WAIT_SECONDS,
        *,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._most_bytes = most_bytes
        self._semaphore = FairSemaphore(most, seconds=wait_seconds, error=_too_many)

    async def read(
        self,
        call: Call,
        account: str,
        slots: AsyncExitStack,
        read: Callable[[dict[str, Any], int], T],
    ) -> T:
        """What `read` makes of the JSON object that the call brings, and of its size in bytes.

        That of a large one runs in a thread, and a slot is put into `slots`, to be held for as
        long as the content is. Raises what `read` does, and

            UnsupportedMediaType, TooLarge, ClientDisconnect: as `read_json_body`.
            InvalidRequest: `invalid_json`, or `invalid_type` where it is no object.
            Unavailable: there is no place, or the body takes too long to come.
        """
        held = AsyncExitStack()
        has_place, received, declared = False, 0, call.declared_length
        try:
            async with asyncio.timeout(None) as patience:

                async def receive() -> Message:
                    nonlocal received, has_place
                    if not has_place and max(received, declared) > LARGE_BYTES:
                        has_place = True
                        await held.enter_async_context(self._semaphore.take(account))
                        patience.reschedule(asyncio.get_running_loop().time() + READ_SECONDS)
                    message = await call.receive()
                    received += len(message.get("body", b""))
                    return message

                raw = await read_json_body(call.headers, receive, self._most_bytes)
                if len(raw) > LARGE_BYTES and not has_place:
                    # it was its last piece that made it large
                    await held.enter_async_context(self._semaphore.take(account))
        except TimeoutError as error:
            raise Unavailable(f"The body did not come within {READ_SECONDS:g} s.") from error
        finally:
            slots.push_async_exit(held)
        if len(raw) <= LARGE_BYTES:
            return read(parse_body(raw), len(raw))
        return await asyncio.to_thread(_parse, raw, read)

    async def take_slot(self, account: str, slots: AsyncExitStack) -> None:
        """Put a slot into `slots`, for content that is as large as a large body. Unavailable."""
        await slots.enter_async_context(self._semaphore.take(account))


def _too_many() -> Unavailable:
    return Unavailable("Too many large bodies are under way, of this account or of all.")


def _parse(raw: bytes, read: Callable[[dict[str, Any], int], T]) -> T:
    if sum(map(raw.count, _SIGNS)) > MOST_SIGNS:
        raise TooLarge(
            f"A body of more than {LARGE_BYTES} bytes must have at most {MOST_SIGNS} commas and"
            " opening brackets."
        )
    return read(parse_body(raw), len(raw))
