"""An output that code in another thread reads, piece by piece; used by `plugins`.

The whole download is one task over there, as a context manager must be; a short queue between the
two loops holds it up where the store is slower.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from gateway_core.adapters.upstreams.isolation import Crashed, Isolation
from gateway_core.ports.upstream import Download, UpstreamUnclear

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
