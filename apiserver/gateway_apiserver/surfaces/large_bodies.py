"""JSON bodies of several MiB, as images in data URLs make them: few in memory at once.

Parsed, such a body takes several times its bytes, and longer than all other calls of the process
may wait.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.types import Message

from gateway_apiserver.endpoints import Call
from gateway_core.api.errors import TooLarge, Unavailable
from gateway_core.fair_semaphore import FairSemaphore, HeldUnits
from gateway_core.tasks.validation import parse_exact_body
from gateway_web.middleware.bodies import RequestBody, read_json_body, read_json_length

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
"""Commas and brackets of a large body, outside its strings: it would be all lists, each 27 times
what it is in JSON."""
READ_SECONDS = 15.0
SLOWEST_BYTES = 1024 * 1024
"""How long a client may take to send a large body, while others wait for its place: 15 s, and one
more for each MiB that it declares."""

_SIGNS = (b"[", b"{", b",")


def take_usual_body(call: Call) -> bytes | None:
    """Return the JSON body if it has arrived and declares no large length, the usual case.

    Return None otherwise.

    Raises UnsupportedMediaType.
    """
    declared = read_json_length(call.headers)
    if 0 < declared <= LARGE_BYTES and isinstance(call.receive, RequestBody):
        return call.receive.take_whole()
    return None


class LargeBodies:
    """Reads bodies; of all accounts' large ones a few are under way at once.

    `most` is their number. With `unit_bytes` it is that of units of so many bytes, which bodies
    take by their declared length, an account at most half of them; a longer body than that waits
    in vain.
    """

    def __init__(
        self,
        most: int = MOST_AT_ONCE,
        wait_seconds: float = WAIT_SECONDS,
        *,
        most_bytes: int = MOST_BYTES,
        unit_bytes: int | None = None,
    ) -> None:
        self._most_bytes = most_bytes
        self._unit_bytes = unit_bytes
        if unit_bytes is None:
            self._semaphore = FairSemaphore(most, seconds=wait_seconds, error=_too_many)
        else:
            self._semaphore = FairSemaphore(
                most, alone=most, per_holder=most // 2, seconds=wait_seconds, error=_too_many
            )

    async def read(
        self,
        call: Call,
        account: str,
        slots: HeldUnits,
        read: Callable[[dict[str, Any], int], T],
    ) -> T:
        """Return the result of `read` for the call's JSON object and its size in bytes.

        That of a large one runs in a thread, and a slot is put into `slots`, to be held for as
        long as the content is. Raises what `read` does, and

            UnsupportedMediaType, TooLarge, ClientDisconnect: as `read_json_body`.
            InvalidRequest: `invalid_json`, or `invalid_type` where it is no object.
            Unavailable: there is no place, or the body takes too long to come.
        """
        declared, clock = call.declared_length, asyncio.get_running_loop().time
        if 0 < declared <= LARGE_BYTES:
            began = clock()
            raw = await read_json_body(call.headers, call.receive, self._most_bytes)
            call.context.waited += clock() - began
            return read(parse_exact_body(raw), len(raw))
        has_place, received = False, 0
        try:
            async with asyncio.timeout(None) as patience:

                async def receive() -> Message:
                    nonlocal received, has_place
                    if not has_place and max(received, declared) > LARGE_BYTES:
                        has_place = True
                        await self.take_slot(account, slots, declared)
                        seconds = READ_SECONDS + declared / SLOWEST_BYTES
                        patience.reschedule(clock() + seconds)
                    began = clock()
                    message = await call.receive()
                    call.context.waited += clock() - began
                    received += len(message.get("body", b""))
                    return message

                raw = await read_json_body(call.headers, receive, self._most_bytes)
                if len(raw) > LARGE_BYTES and not has_place:
                    # it was its last piece that made it large
                    await self.take_slot(account, slots, len(raw))
        except TimeoutError as error:
            raise Unavailable("The body did not come in time.") from error
        if len(raw) <= LARGE_BYTES:
            return read(parse_exact_body(raw), len(raw))
        return await asyncio.to_thread(_parse, raw, read)

    async def take_slot(self, account: str, slots: HeldUnits, size: int) -> None:
        """Put a slot for content of `size` bytes into `slots`. Unavailable."""
        units = 1 if self._unit_bytes is None else -(-size // self._unit_bytes) or 1
        await slots.take(self._semaphore, account, units)


def _too_many() -> Unavailable:
    return Unavailable("Too many large bodies are under way, of this account or of all.")


def _parse(raw: bytes, read: Callable[[dict[str, Any], int], T]) -> T:
    if _count_signs(raw) > MOST_SIGNS and _count_signs(_drop_strings(raw)) > MOST_SIGNS:
        raise TooLarge(
            f"A body of more than {LARGE_BYTES} bytes must have at most {MOST_SIGNS} commas and"
            " opening brackets."
        )
    return read(parse_exact_body(raw), len(raw))


def _count_signs(raw: bytes) -> int:
    return sum(map(raw.count, _SIGNS))


def _drop_strings(raw: bytes) -> bytes:
    """JSON without its strings; as it is where they are many, which all are objects in memory."""
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    return raw if plain.count(b'"') > 2 * MOST_SIGNS else b"".join(plain.split(b'"')[::2])
