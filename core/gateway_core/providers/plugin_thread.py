"""A thread with an event loop of its own for plugin code, and the outputs read from it."""

import asyncio
import concurrent.futures
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from gateway_core.providers.upstream import Download, UpstreamUnclear

T = TypeVar("T")
_JOIN_SECONDS = 1.0
_MARGIN_SECONDS = 1.0
_left: set[threading.Thread] = set()
"""Threads that were still stuck when they should have ended."""


class NeverBegun(Exception):
    """The thread is stuck: the call was given up before any of it was run."""


class NeverEnded(Exception):
    """The call took longer than it may; it is cancelled, or goes on if its thread is stuck."""


class Crashed(Exception):
    """The code raised something, which is the cause."""


@dataclass(slots=True)
class _Ticket:
    """Who came first: each side writes its own flag before it reads the other's."""

    begun: bool = False
    given_up: bool = False


class Isolation:
    """Runs coroutines elsewhere. `patience` is how many seconds one may wait for its begin."""

    def __init__(self, name: str, patience: float) -> None:
        self._patience = patience
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._came_round: threading.Event | None = None
        self._stuck_from = 0.0
        # a daemon: one that is stuck must not keep the process from ending
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether the thread has not come round for as long as one may wait for it."""
        if self._came_round is None or self._came_round.is_set():
            return False
        return time.monotonic() >= self._stuck_from

    async def run(self, make: Callable[[], Awaitable[T]], seconds: float) -> T:
        """The result of the coroutine that `make` makes, within `seconds`.

        Raises NeverBegun, NeverEnded, and Crashed with what the code raised as its cause.
        """
        if self._stopped:
            raise NeverBegun
        ticket = _Ticket()
        remote = asyncio.run_coroutine_threadsafe(_attempt(make, ticket, seconds), self._loop)
        local = asyncio.wrap_future(remote)
        try:
            await asyncio.wait({local}, timeout=self._patience)
            if not ticket.begun:
                ticket.given_up = True
                if not ticket.begun:
                    self._call_round(0.0)
                    raise NeverBegun
            if not local.done():
                self._call_round(self._patience)
                await asyncio.wait({local}, timeout=seconds + _MARGIN_SECONDS)
            if not local.done():
                raise NeverEnded
        finally:
            local.cancel()
        if local.cancelled():
            raise NeverEnded
        value, error = local.result()
        if isinstance(error, NeverBegun):
            raise error
        if error is None:
            return cast(T, value)
        if isinstance(error, TimeoutError | asyncio.CancelledError):
            raise NeverEnded from error
        raise Crashed from error

    def spawn(self, make: Callable[[], Awaitable[Any]]) -> "concurrent.futures.Future[Any]":
        """Starts a coroutine there; its future, whose result is (value, error)."""
        work = _attempt(make, _Ticket(), None)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def stop(self) -> None:
        """Ends the thread, unless it is stuck; nothing can be run any more."""
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
        if self._thread.is_alive():
            _left.add(self._thread)
        else:
            self._loop.close()

    def _call_round(self, seconds: float) -> None:
        """Has the thread show that it goes on, within so many seconds."""
        stuck_from = time.monotonic() + seconds
        if self._came_round is not None and not self._came_round.is_set():
            self._stuck_from = min(self._stuck_from, stuck_from)
        elif not self._stopped:
            self._came_round, self._stuck_from = threading.Event(), stuck_from
            self._loop.call_soon_threadsafe(self._came_round.set)


def count_left(name: str) -> int:
    """How many threads of that name were stopped and are stuck still."""
    _left.difference_update([thread for thread in _left if not thread.is_alive()])
    return sum(thread.name == name for thread in _left)


async def _attempt(
    make: Callable[[], Awaitable[Any]], ticket: _Ticket, seconds: float | None
) -> tuple[Any, BaseException | None]:
    """The value or the error; nothing is raised, since SystemExit would end the loop."""
    ticket.begun = True
    if ticket.given_up:
        # whoever gave up may have seen `begun` and be waiting after all
        return None, NeverBegun()
    try:
        async with asyncio.timeout(seconds):
            return await make(), None
    except BaseException as error:
        return None, error


STALL_SECONDS = 60.0
_MOST_PIECES = 4
_MOST_PIECE = 4 * 1024 * 1024
_KIND = re.compile(r"video/[a-z0-9.+-]{1,100}|application/octet-stream")
_END = object()

Opener = Callable[[], AbstractAsyncContextManager[Download]]


@asynccontextmanager
async def read_download(isolation: Isolation, opener: Opener) -> AsyncIterator[Download]:
    """The download that `opener` opens over there.

    Raises UpstreamUnclear, and Crashed with what the code raised as its cause; also while reading.
    """
    here = asyncio.get_running_loop()
    pieces: asyncio.Queue[Any] = asyncio.Queue(_MOST_PIECES)

    async def put(piece: Any) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pieces.put(piece), here))

    async def pump() -> None:
        async with opener() as download:
            await put(download.content_type)
            async for chunk in download.chunks:
                await put(chunk)
        await put(_END)

    work = asyncio.wrap_future(isolation.spawn(pump))
    try:
        kind = await _take(pieces, work)
        if not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise UpstreamUnclear("The output is not a video.")
        yield Download(kind, _read(pieces, work))
    finally:
        work.cancel()


async def _read(pieces: asyncio.Queue[Any], work: asyncio.Future[Any]) -> AsyncIterator[bytes]:
    read = 0
    while (piece := await _take(pieces, work)) is not _END:
        if not isinstance(piece, bytes) or len(piece) > _MOST_PIECE:
            raise UpstreamUnclear("The output is not made of bytes.")
        read += len(piece)
        yield piece
    if not read:
        raise UpstreamUnclear("The output is empty.")


async def _take(pieces: asyncio.Queue[Any], work: asyncio.Future[Any]) -> Any:
    """The next piece, or the error that ended the work."""
    getter = asyncio.ensure_future(pieces.get())
    try:
        await asyncio.wait(
            {getter, work}, timeout=STALL_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if getter.done():
            return getter.result()
    finally:
        getter.cancel()
    if not pieces.empty():
        return pieces.get_nowait()
    if not work.done():
        raise UpstreamUnclear("The output does not come.")
    error: BaseException | None = None if work.cancelled() else work.result()[1]
    raise Crashed from (error or UpstreamUnclear("The output broke off."))
