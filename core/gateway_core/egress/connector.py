"""Connector of outgoing connections, which checks the address it really connects to.

Name look-ups for clients' URLs are shared fairly by account.
"""

import asyncio
import socket
import ssl
from collections.abc import Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway_core.concurrency import FairSemaphore
from gateway_core.egress.addresses import AddressPolicy, AddressRefused


class EgressRefused(OSError):
    """The policy refuses the address; the AddressRefused is its cause.

    aiohttp tells of it in a ClientConnectorError. The text is always the same: of a host's several
    addresses aiohttp passes the error on only where they agree.
    """

    def __init__(self) -> None:
        super().__init__("The address is not allowed.")


def guarded_connector(
    policy: AddressPolicy,
    limit: int,
    *,
    resolver: AbstractResolver | None = None,
    once: bool = False,
    idle_seconds: float = 15.0,
    tls: ssl.SSLContext | None = None,
) -> aiohttp.TCPConnector:
    """A connector of at most `limit` connections that opens none to what `policy` refuses.

    The check is in the making of the socket, after DNS and before the connection, once for each
    address tried: a name that resolves differently the second time gains nothing. TLS still
    verifies the name. `once` keeps neither connections nor addresses for a second request; other
    connections are kept for `idle_seconds`. `tls` is whom to trust, in place of the system's. Call
    it with an event loop running.
    """

    def open_socket(
        address_info: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, Any],
    ) -> socket.socket:
        family, kind, protocol, _, address = address_info
        if family not in {socket.AF_INET, socket.AF_INET6}:
            raise EgressRefused
        try:
            policy.check_ip(address[0])
        except AddressRefused as error:
            raise EgressRefused from error
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        limit=limit,
        socket_factory=open_socket,
        resolver=resolver,
        force_close=once,
        keepalive_timeout=None if once else idle_seconds,
        use_dns_cache=not once,
        ssl=True if tls is None else tls,
    )


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
        self._places = FairSemaphore(THREADS, per_holder=PER_SHARE)

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
