"""Name resolution for URLs of clients, shared fairly by account.

`getaddrinfo` cannot be cancelled: a name whose server never answers holds its thread until the C
library gives up, half a minute or longer. Threads are therefore bounded and divided by a fair
semaphore: slow names of one account delay that account's own look-ups and leave threads to others.
"""

import asyncio
import socket
from collections.abc import Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway_core.concurrency import Places

THREADS = 128
PER_SHARE = 4
MOST_ADDRESSES = 8
"""Addresses of one name that are tried: aiohttp's effort is the square of their number."""


@dataclass(slots=True)
class _Errand:
    """Who pays for a look-up, and the time limit that stands still while it waits for a thread."""

    share: Hashable
    limit: asyncio.Timeout | None
    seconds: float


_errand: ContextVar[_Errand | None] = ContextVar("errand", default=None)


@contextmanager
def run_errand(
    share: Hashable, limit: asyncio.Timeout | None = None, seconds: float = 0.0
) -> Iterator[None]:
    """Charges the look-ups within to `share`.

    While one waits for a thread `limit`, if given, stands still; it begins anew, with `seconds`,
    once the look-up has one.
    """
    token = _errand.set(_Errand(share, limit, seconds))
    try:
        yield
    finally:
        _errand.reset(token)


class PooledResolver(AbstractResolver):
    """Looks names up in threads of its own; outside an errand all are of one share."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._places = Places(THREADS, PER_SHARE)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The first addresses of `host`. OSError where there is none."""
        errand = _errand.get() or _Errand(None, None, 0.0)
        if errand.limit is not None:
            errand.limit.reschedule(None)
        work = await self._begin(errand.share, host, port, family)
        if errand.limit is not None:
            errand.limit.reschedule(asyncio.get_running_loop().time() + errand.seconds)
        found = await asyncio.wrap_future(work)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=found_family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found_family, _, protocol, _, address in found[:MOST_ADDRESSES]
        ]

    async def close(self) -> None:
        """Lets go of the threads; those in a look-up end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, share: Hashable, host: str, port: int, family: int) -> Future[Any]:
        """A look-up that has a thread, which `share` holds until the look-up itself ends."""
        await self._places.acquire(share)
        loop = asyncio.get_running_loop()

        def free_thread(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(self._places.release, share)

        work = self._threads.submit(_look_up, host, port, family)
        work.add_done_callback(free_thread)
        return work


def _look_up(host: str, port: int, family: int) -> Any:
    return socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
