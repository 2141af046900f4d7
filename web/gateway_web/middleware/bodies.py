"""The pace of request bodies and the memory of JSON bodies, on every route."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from gateway_core.api.errors import TooLarge, Unavailable, UnsupportedMediaType
from gateway_core.fair_semaphore import FairSemaphore
from gateway_web.context import Header, get_context
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange

JSON_TYPE = "application/json"
_JSON_TYPE = JSON_TYPE.encode()

IDLE_SECONDS = 60.0
"""How long the next bytes of a body may take to come, and all of them beside what they earn."""
SLOWEST_BYTES = 8 * 1024
"""Bytes that earn one second more: less than any line gives, as a slow one takes its account's own
places alone."""

JSON_MEMORY_BYTES = 96 * 1024 * 1024
"""Bytes of JSON bodies that one process holds at once."""
JSON_ALONE_BYTES = 64 * 1024 * 1024
"""Of these, what a single account may have, or all clients without a key together."""
FREE_BYTES = 16 * 1024
"""A body up to this size needs no share: most calls pass while others hold everything."""
MOST_COUNTED_BYTES = 1024 * 1024
"""A longer JSON body is streamed, or bounded by its surface (temporary files, moderations)."""


class BodyMemory:
    """The memory that JSON bodies take in one process, by account."""

    def __init__(
        self,
        total: int = JSON_MEMORY_BYTES,
        alone: int = JSON_ALONE_BYTES,
        most_counted: int = MOST_COUNTED_BYTES,
    ) -> None:
        self._shares = FairSemaphore(total, alone=alone)
        self.most_counted = most_counted

    def take(self, holder: str, size: int) -> None:
        """Counts `size` bytes more. Unavailable where there is no room for them."""
        if not self._shares.has_room(holder, size):
            raise Unavailable("Too many large bodies are under way, of this account or of all.")
        self._shares.acquire_nowait(holder, size)

    def give_back(self, holder: str, size: int) -> None:
        """End the count of `size` bytes."""
        self._shares.release(holder, size)


class RequestBody:
    """Receives a body for as long as it comes fast enough: 60 s, and a second for each 8 KiB.

    Only the time counts in which this process waits for its client. After the end of the body it
    is the plain `receive`, which waits for the client to leave. A JSON body, which routes keep
    whole, is counted in `memory` until `close`.
    """

    __slots__ = ("_counted", "_ended", "_got", "_holder", "_left", "_memory", "_receive", "_scope")

    def __init__(self, receive: Receive, scope: Scope, memory: BodyMemory) -> None:
        self._receive = receive
        self._scope = scope
        self._memory = memory
        self._left = IDLE_SECONDS
        self._ended = False
        self._got = 0
        self._counted = 0
        self._holder: str | None = None

    def close(self) -> None:
        """End the count of the body, which is no longer in memory."""
        if self._counted:
            self._memory.give_back(self._holder or "", self._counted)
            self._counted = 0

    def take_whole(self) -> bytes | None:
        """Return the whole body where it came with its head, the usual case; else None.

        Raises Unavailable.
        """
        exchange: Exchange | None = self._scope.get(EXCHANGE_KEY)
        if exchange is None or not exchange.is_received or self._ended or self._got:
            return None
        body = exchange.take_body()
        if body is None:
            return None
        self._ended, self._got = True, len(body)
        if self._got > FREE_BYTES:
            self._count(self._got)
        return body

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it. Unavailable where it does not come in time."""
        if self._ended:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        began = clock()
        exchange = self._scope.get(EXCHANGE_KEY)
        if exchange is not None and exchange.is_received:
            # the usual case: it came with its head, so nothing is waited for
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout(max(0.0, min(IDLE_SECONDS, self._left))):
                    message = await self._receive()
            except TimeoutError:
                raise _too_slow() from None
        size = len(message.get("body", b""))
        self._got += size
        if self._got > FREE_BYTES:
            self._count(size)
        if not message.get("more_body"):
            self._ended = True
            return message
        self._left += size / SLOWEST_BYTES - (clock() - began)
        if self._left <= 0:
            raise _too_slow()
        return message

    def _count(self, size: int) -> None:
        if self._holder is None:
            if not _is_json(self._scope):
                # only bodies that are streamed
                self._holder, self._got = "", -(1 << 62)
                return
            # a route authenticates before it reads (contract §0.9)
            self._holder = get_context(self._scope).account or "anonymous"
        size = min(size, self._memory.most_counted - self._counted)
        if size > 0:
            self._memory.take(self._holder, size)
            self._counted += size


async def read_chunks(
    receive: Receive, most_bytes: int, error: Exception
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a body, none of them empty. `error` is raised beyond `most_bytes`.

    Raises ClientDisconnect if the body has no end.
    """
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(chunk)
        if size > most_bytes:
            raise error
        if chunk:
            yield chunk


async def read_json_body(headers: Iterable[Header], receive: Receive, max_bytes: int) -> bytes:
    """Return the whole body of a JSON request.

    Raises:
        UnsupportedMediaType: it is declared as something else, or as nothing.
        TooLarge: it is longer than `max_bytes`, as declared or as sent.
        ClientDisconnect: it never came to its end.
    """
    if read_json_length(headers) > max_bytes:
        raise _make_too_large(max_bytes)
    if isinstance(receive, RequestBody):
        whole = receive.take_whole()
        if whole is not None:
            if len(whole) > max_bytes:
                raise _make_too_large(max_bytes)
            return whole
    first = await receive()
    if first["type"] == "http.request" and not first.get("more_body"):
        # the usual case: all of it came at once
        body: bytes = first.get("body", b"")
        if len(body) > max_bytes:
            raise _make_too_large(max_bytes)
        return body

    async def receive_again() -> Message:
        nonlocal first
        message, first = first, {}
        return message or await receive()

    error = _make_too_large(max_bytes)
    return b"".join([chunk async for chunk in read_chunks(receive_again, max_bytes, error)])


async def read_optional_json_body(
    headers: Iterable[Header], receive: Receive, max_bytes: int
) -> bytes:
    """Read a body as `read_json_body` does; an empty one needs no media type, in chunks too."""
    if b"content-type" in dict(headers):
        return await read_json_body(headers, receive, max_bytes)
    async for _ in read_chunks(receive, 0, UnsupportedMediaType(JSON_TYPE)):
        pass
    return b""


def read_json_length(headers: Iterable[Header]) -> int:
    """Return the declared length of a JSON body, 0 if there is none. UnsupportedMediaType."""
    given = dict(headers)
    media_type = given.get(b"content-type", b"")
    if media_type != _JSON_TYPE and media_type.partition(b";")[0].strip().lower() != _JSON_TYPE:
        raise UnsupportedMediaType(JSON_TYPE)
    if is_encoding(given.get(b"content-encoding", b"")):
        raise UnsupportedMediaType(JSON_TYPE, is_encoded=True)
    declared = given.get(b"content-length", b"")
    return int(declared) if declared.isdigit() else 0


def is_encoding(value: bytes) -> bool:
    """Return whether a Content-Encoding changes the body; some clients name the charset there."""
    return value.strip().lower() not in (b"", b"identity", b"utf-8")


def _make_too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The body must have at most {max_bytes} bytes.")


def _is_json(scope: Scope) -> bool:
    return any(
        name == b"content-type" and value.lower().startswith(b"application/json")
        for name, value in scope["headers"]
    )


def _too_slow() -> Unavailable:
    # not the client's mistake: its line may be better the next time, and SDKs try again
    return Unavailable("The rest of the body did not come in time.")
