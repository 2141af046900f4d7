"""Outgoing connections that check each address they are made to, and a resolver for them.

The resolver's threads are shared fairly between accounts.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from multidict import CIMultiDict
from yarl import URL

from gateway_core.egress.addresses import DECLARED, AddressPolicy, AddressRefused
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.proxies import InvalidProxy, find_proxy, split_credentials


class EgressRefused(OSError):
    """The policy forbids the address; the AddressRefused is its cause.

    aiohttp wraps it in a ClientConnectorError. The text is constant, since of a host with several
    addresses aiohttp passes an error on only where all errors are equal.
    """

    def __init__(self) -> None:
        super().__init__("The address is not allowed.")


def is_refused(error: BaseException) -> bool:
    """Return whether a request failed because the policy forbids the address."""
    causes = (error, error.__cause__, getattr(error, "os_error", None))
    return any(isinstance(cause, EgressRefused) for cause in causes)


def parse_url(url: str) -> URL | None:
    """Return the URL that a client chose, its characters unchanged.

    Return None if it is not to be requested.
    """
    plain = url.isascii() and url.isprintable() and " " not in url
    try:
        address = URL(url, encoded=plain).with_fragment(None)
        is_http = address.scheme in ("http", "https") and bool(address.host)
    except ValueError:
        return None
    has_user = address.raw_user is not None or address.raw_password is not None
    return address if is_http and not has_user else None


def guarded_connector(
    policy: AddressPolicy,
    limit: int,
    *,
    resolver: AbstractResolver | None = None,
    once: bool = False,
    idle_seconds: float = 15.0,
    tls: ssl.SSLContext | None = None,
) -> aiohttp.TCPConnector:
    """Connector of at most `limit` connections that opens none to an address `policy` forbids.

    It checks when the socket is made, after DNS and before the connection, for each address tried:
    a name that resolves to another address the second time (DNS rebinding) gains nothing. TLS still
    verifies the name. `once` keeps neither connections nor addresses for a second request; other
    connections are kept for `idle_seconds`. `tls` replaces the system's trusted certificates. Needs
    a running event loop.
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


async def use_proxy(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware of sessions for declared URLs: the proxy that the environment names, if any.

    The proxy resolves the host's name, so only a literal address is checked here.

    Raises:
        aiohttp.ClientConnectorError: the proxy refuses or is invalid; nothing was sent.
    """
    url = str(request.url)
    try:
        proxy = find_proxy(url)
        if proxy is None:
            return await handler(request)
        DECLARED.check_url_literal(url)
    except InvalidProxy as error:
        raise aiohttp.ClientConnectorError(request.connection_key, OSError(str(error))) from error
    except AddressRefused as error:
        raise aiohttp.ClientConnectorError(request.connection_key, EgressRefused()) from error
    return await send_through(proxy, request, handler)


async def send_through(
    proxy: str, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Middleware of sessions with one proxy, whose credentials are in no error.

    Raises:
        aiohttp.ClientConnectorError: the proxy refuses; nothing was sent.
    """
    address, headers = split_credentials(proxy)
    request.update_proxy(URL(address), None, CIMultiDict(headers))
    if not request.is_ssl():
        # without a tunnel the proxy reads the request's own headers
        request.headers.update(headers)
    try:
        return await handler(request)
    except aiohttp.ClientHttpProxyError as error:
        refusal = OSError(f"the proxy answered {error.status}")
        raise aiohttp.ClientProxyConnectionError(request.connection_key, refusal) from None


THREADS = 128
PER_HOLDER = 4
MOST_ADDRESSES = 8
"""Addresses tried of one name: aiohttp's effort grows with the square of their number."""


@dataclass(slots=True)
class _Lookup:
    """Holder that a look-up counts for, and the time limit paused while it waits for a thread."""

    holder: Hashable
    limit: asyncio.Timeout | None
    seconds: float


_lookup: ContextVar[_Lookup | None] = ContextVar("lookup", default=None)


@contextmanager
def count_lookups(
    holder: Hashable, limit: asyncio.Timeout | None = None, seconds: float = 0.0
) -> Iterator[None]:
    """Count the look-ups of the block for `holder`, such as an account.

    `limit` is paused while a look-up waits for a thread, and then restarted with `seconds`.
    """
    token = _lookup.set(_Lookup(holder, limit, seconds))
    try:
        yield
    finally:
        _lookup.reset(token)


class PooledResolver(AbstractResolver):
    """Resolver on threads of its own, shared fairly between holders (see `count_lookups`)."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
        self._slots = FairSemaphore(THREADS, per_holder=PER_HOLDER)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the first addresses of `host`. OSError where there is none."""
        lookup = _lookup.get() or _Lookup(None, None, 0.0)
        if lookup.limit is not None:
            lookup.limit.reschedule(None)
        work = await self._begin(lookup.holder, host, port, family)
        if lookup.limit is not None:
            lookup.limit.reschedule(asyncio.get_running_loop().time() + lookup.seconds)
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
        """Stop the threads; running look-ups end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _begin(self, holder: Hashable, host: str, port: int, family: int) -> Future[Any]:
        """Begin a look-up on a thread, which counts for `holder` until it ends."""
        await self._slots.acquire(holder)
        loop = asyncio.get_running_loop()

        def free_thread(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(self._slots.release, holder)

        work = self._threads.submit(_look_up, host, port, family)
        work.add_done_callback(free_thread)
        return work


def _look_up(host: str, port: int, family: int) -> Any:
    return socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )


CONNECT_SECONDS = 5.0


class GuardedSession:
    """Session for URLs that clients choose, under one policy. For one event loop.

    Each request has a connection of its own: none is sent into one that is being closed, and two
    accounts never share one. Bodies are not decompressed, so that none expands in memory. The
    caller bounds the concurrency. `handler` makes the protocol of a connection; `options` are
    further ones of aiohttp's session.
    """

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
        handler: Callable[[], ResponseHandler] | None = None,
        **options: Any,
    ) -> None:
        self._policy = policy
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._resolver = resolver
        self._tls = tls
        self._handler = handler
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> aiohttp.ClientSession:
        """Return the session, created at first use, since a connector needs the running loop."""
        if self._session is None:
            self._resolver = self._resolver or PooledResolver()
            connector = guarded_connector(
                self._policy, 0, resolver=self._resolver, once=True, tls=self._tls
            )
            if self._handler is not None:
                # aiohttp has no public hook for received bytes before they are parsed
                connector._factory = self._handler  # type: ignore[assignment]
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=self._timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                **self._options,
            )
        return self._session

    async def close(self) -> None:
        """Free connections and threads."""
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()
