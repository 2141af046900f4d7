"""A thread with its own event loop for the code of one adapter, and outputs read from it."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, cast

from gateway_core.providers.upstream import Download, UpstreamUnclear

T = TypeVar("T")
TICK_SECONDS = 0.1
_JOIN_SECONDS = 1.0
_MARGIN_SECONDS = 1.0
_STUCK = " (stuck)"


class NeverBegun(Exception):
    """The thread is blocked: the call was withdrawn before any of it ran."""


class NeverEnded(Exception):
    """The call took too long; it is cancelled, or goes on where it blocks its thread."""


class Crashed(Exception):
    """The code raised the cause of this exception."""


class Isolation:
    """Runs coroutines on its thread. A call may wait `patience` seconds for its begin."""

    def __init__(self, name: str, patience: float) -> None:
        self._patience = patience
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._ticked_at = time.monotonic()
        self._loop.call_soon(self._tick)
        # a daemon: blocked code must not keep the process from exiting
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether the code has blocked the thread for as long as a call may wait."""
        return not self._stopped and time.monotonic() - self._ticked_at > self._patience

    async def run(self, make: Callable[[], Awaitable[T]], seconds: float) -> T:
        """The result of the coroutine that `make` makes. NeverBegun, NeverEnded, Crashed."""
        if self._stopped:
            raise NeverBegun
        begun = Future[None]()
        work = self._submit(make, begun, seconds)
        try:
            await asyncio.wait({work}, timeout=self._patience)
            # atomic: either this cancels the begin, or the call has begun
            if begun.cancel():
                raise NeverBegun
            await asyncio.wait({work}, timeout=seconds + _MARGIN_SECONDS)
            if not work.done() or work.cancelled():
                raise NeverEnded
        finally:
            work.cancel()
        value, error = work.result()
        if error is None:
            return cast(T, value)
        if isinstance(error, TimeoutError | asyncio.CancelledError):
            raise NeverEnded from error
        raise Crashed from error

    @asynccontextmanager
    async def spawn(self, make: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Run a coroutine beside the block; it must handle its own errors."""
        work = self._submit(make, Future(), None)
        try:
            yield
        finally:
            work.cancel()

    async def stop(self) -> None:
        """End the thread unless it is blocked; no call is run any more."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
        if self._thread.is_alive():
            self._thread.name += _STUCK
        else:
            self._loop.close()

    def _submit(
        self, make: Callable[[], Awaitable[Any]], begun: "Future[None]", seconds: float | None
    ) -> "asyncio.Future[tuple[Any, BaseException | None]]":
        work = asyncio.run_coroutine_threadsafe(_attempt(make, begun, seconds), self._loop)
        return asyncio.wrap_future(work)

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._loop.call_later(TICK_SECONDS, self._tick)


def count_stuck(name: str) -> int:
    """Threads of that name that were stopped and are blocked still."""
    return sum(thread.name == name + _STUCK for thread in threading.enumerate())


async def _attempt(
    make: Callable[[], Awaitable[Any]], begun: "Future[None]", seconds: float | None
) -> tuple[Any, BaseException | None]:
    if not begun.set_running_or_notify_cancel():
        return None, NeverBegun()
    # returned and not raised: SystemExit and KeyboardInterrupt would end the loop
    try:
        async with asyncio.timeout(seconds):
            return await make(), None
    except BaseException as error:
        return None, error


STALL_SECONDS = 60.0
_MOST_PIECES = 4
_MOST_PIECE = 4 * 1024 * 1024
_KIND = re.compile(r"video/[a-z0-9.+-]{1,100}|application/octet-stream")

Opener = Callable[[], AbstractAsyncContextManager[Download]]


@asynccontextmanager
async def read_download(isolation: Isolation, opener: Opener) -> AsyncIterator[Download]:
    """The download that `opener` opens on the adapter's thread.

    Raises UpstreamUnclear, and Crashed with what the code raised as its cause; also while reading.
    """
    here = asyncio.get_running_loop()
    # bounded: the adapter waits while the reader is slower
    pieces: asyncio.Queue[Any] = asyncio.Queue(_MOST_PIECES)

    async def put(piece: object) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pieces.put(piece), here))

    async def pump() -> None:
        try:
            async with opener() as download:
                await put(download.content_type)
                async for chunk in download.chunks:
                    await put(chunk)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await put(error)
        else:
            await put(None)

    async with isolation.spawn(pump):
        kind = await _take(pieces)
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise UpstreamUnclear("The output is not a video.")
        yield Download(kind, _read(pieces))


async def _read(pieces: asyncio.Queue[Any]) -> AsyncIterator[bytes]:
    read = 0
    while (piece := await _take(pieces)) is not None:
        if not isinstance(piece, bytes) or len(piece) > _MOST_PIECE:
            raise UpstreamUnclear("The output is not made of bytes.")
        read += len(piece)
        yield piece
    if not read:
        raise UpstreamUnclear("The output is empty.")


async def _take(pieces: asyncio.Queue[Any]) -> Any:
    """The next piece; raises Crashed from the error that ended the download."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            piece = await pieces.get()
    except TimeoutError as error:
        raise UpstreamUnclear("The output does not arrive.") from error
    if isinstance(piece, BaseException):
        raise Crashed from piece
    return piece
