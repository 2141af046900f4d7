"""Looking up of host names that strangers chose, so that none of them keeps the others waiting.

A look-up cannot be called off: a name whose server never answers holds its thread for up to half a
minute, whoever waits for it. Each share therefore has few threads at once, and whose share is used
up waits in a line of its own, at nobody else's cost and not on the receiver's time.
"""

import asyncio
import socket
from collections.abc import Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

THREADS = 128
PER_SHARE = 4
MOST_ADDRESSES = 8
"""Addresses of one name that are tried: aiohttp's effort is the square of their number."""


@dataclass(slots=True)
class _Errand:
    """What a look-up is made for: at whose cost, and the time limit that stands still meanwhile."""

    share: Hashable
    limit: asyncio.Timeout
    seconds: float


_errand: ContextVar[_Errand | None] = ContextVar("errand", default=None)


@contextmanager
def run_errand(share: Hashable, limit: asyncio.Timeout, seconds: float) -> Iterator[None]:
    """Has look-ups within made at the cost of `share`.

    While one waits for its turn `limit` stands still; then it begins anew, with `seconds`.
    """
    token = _errand.set(_Errand(share, limit, seconds))
    try:
        yield
    finally:
        _errand.reset(token)


@dataclass(slots=True)
class _Share:
    """How many may look up at once, and how many do or wait for it."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PER_SHARE))
    users: int = 0


class PooledResolver(AbstractResolver):
    """Looks names up in threads of its own; outside an errand all are of one share."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._free = asyncio.Semaphore(THREADS)
        self._shares: dict[Hashable, _Share] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The first addresses of `host`. OSError where there is none."""
        errand = _errand.get()
        if errand is not None:
            errand.limit.reschedule(None)
        work = await self._begin(errand.share if errand else None, host, port, family)
        if errand is not None:
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

    async def _begin(self, key: Hashable, host: str, port: int, family: int) -> Future[Any]:
        """A look-up that has a thread. Its place is free again once the thread is."""
        share = self._shares.setdefault(key, _Share())
        share.users += 1
        try:
            await share.places.acquire()
            try:
                await self._free.acquire()
            except BaseException:
                share.places.release()
                raise
        except BaseException:
            self._tidy(key, share)
            raise
        loop = asyncio.get_running_loop()

        def leave() -> None:
            self._free.release()
            share.places.release()
            self._tidy(key, share)

        def tell(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(leave)

        work = self._threads.submit(_look_up, host, port, family)
        work.add_done_callback(tell)
        return work

    def _tidy(self, key: Hashable, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            self._shares.pop(key, None)


def _look_up(host: str, port: int, family: int) -> Any:
    return socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
