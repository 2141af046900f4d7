"""HTTP/1.1 client of one upstream, with a bounded pool of connections.

An aiohttp client costs several times the CPU of the rest of a pass-through.
"""

import asyncio
import re
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway_core.concurrency import WaitLimit
from gateway_core.egress.addresses import DECLARED, AddressPolicy, AddressRefused
from gateway_core.egress.connector import MOST_ADDRESSES, EgressRefused
from gateway_core.llm.connection import (
    ClosedUnanswered,
    Connection,
    Timeouts,
)
from gateway_core.llm.response import Response
from gateway_core.llm.tunnels import find_route
from gateway_core.providers.upstream import UpstreamBusy, UpstreamUnreachable

IDLE_SECONDS = 4.0
"""Lifetime of a free connection: common servers close theirs after 5 s."""
TLS_BYTES = 32 * 1024
"""Received at once from a TLS connection, and held until it is decrypted."""
_TURN_SECONDS = 10.0
"""How long a call waits for a connection while all are in use."""

_CLOSED = "The provider is being reconfigured."

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21-\x7e]*")

_DEFAULT_TIMEOUTS = Timeouts()


class Client:
    """Client of the upstream at `base_url` (http or https; its path precedes that of each request).

    Keeps at most `limit` connections; further calls wait in order. Connects to no address that
    `policy` forbids: an admin declares the upstream, also inside the cluster, and metadata
    addresses stay forbidden. `tls` replaces the system's trusted certificates. Raises ValueError
    for a URL of another form.
    """

    def __init__(
        self,
        base_url: str,
        limit: int,
        *,
        timeouts: Timeouts = _DEFAULT_TIMEOUTS,
        policy: AddressPolicy = DECLARED,
        tls: ssl.SSLContext | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError("not an http or https URL without query and fragment")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._proxy = find_route(base_url)
        self._tls = (tls or _default_tls()) if url.scheme == "https" else None
        if self._tls is not None:
            # the event loop holds so much for every TLS connection; its 256 KiB are no faster
            SSLProtocol.max_size = TLS_BYTES
        self._path = url.path.rstrip("/")
        self._authority = url.netloc.rpartition("@")[2]
        self._limit = limit
        self._timeouts = timeouts
        self._policy = policy
        self._idle_seconds = idle_seconds
        self._free: deque[Connection] = deque()
        self._open = 0
        """Number of connections, with those being opened."""
        self._connections: set[Connection] = set()
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        """Calls that wait: for a connection, or None, which is leave to open one."""
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    def prepare(self, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        """Return the head of a request but for its length, for `send`.

        It serves many requests with one head.

        `path` follows the base URL's and is percent-encoded. Raises ValueError for characters that
        HTTP does not allow.
        """
        target = (self._path + path).encode()
        if not _TARGET.fullmatch(target):
            raise ValueError("not a percent-encoded path")
        common = {
            "host": self._authority,
            "accept-encoding": "identity",
            "user-agent": "model-gateway",
        }
        if self._proxy is not None and self._tls is None:
            # without a tunnel the proxy reads the request itself
            target = f"http://{self._authority}".encode() + target
            common |= self._proxy.headers
        return b"%b %b HTTP/1.1\r\n" % (method.encode(), target) + encode_headers(
            common | {name.lower(): value for name, value in headers.items()}
        )

    async def send(
        self,
        head: bytes,
        body: bytes = b"",
        *,
        timeouts: Timeouts | None = None,
        note_sent: Callable[[], None] = lambda: None,
    ) -> Response:
        """Send a request: a head of `prepare`, with further `encode_headers` as needed, and a body.

        Returns when the response's head has arrived, whatever its status; the caller reads the body
        and ends with `Response.abort`. Cancellation closes the connection. A request is sent a
        second time, on a new connection, where the upstream closed a kept one without an answer.
        `note_sent` is called just before the first byte is sent.

        Raises:
            UpstreamUnreachable: no connection; nothing was sent.
            UpstreamBusy: no free connection in time, or the client is closed; nothing was sent.
            UpstreamTimedOut: the request is not read in time.
            UpstreamSilent: no head in time.
            UpstreamUnclear: the connection broke off, or the answer cannot be read.
        """
        limits = timeouts or self._timeouts
        head = b"%bcontent-length: %d\r\n\r\n" % (head, len(body))
        connection = self._take_free() or await self._acquire(limits.connect)
        note_sent()
        try:
            return await connection.exchange(head, body, limits)
        except ClosedUnanswered:
            # not one of the other free connections: a restart of the upstream has closed them too
            connection = await self._acquire(limits.connect)
            return await connection.exchange(head, body, limits)

    def close(self) -> None:
        """Close free connections, and others after their response; later calls get UpstreamBusy."""
        self._closed = True
        self._close_free()
        if self._sweep is not None:
            self._sweep.cancel()
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(UpstreamBusy(_CLOSED))

    def _take_free(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _acquire(self, connect_seconds: float) -> Connection:
        """Return a connection of a caller's own: a new one, or another call's if all are in use."""
        while not self._closed:
            if self._open < self._limit:
                self._open += 1
            else:
                connection = await self._wait_for_turn()
                if connection is not None:
                    if connection.is_open:
                        return connection
                    continue
            try:
                return await self._connect(connect_seconds)
            except BaseException:
                self._give_slot()
                raise
        raise UpstreamBusy(_CLOSED)

    async def _wait_for_turn(self) -> Connection | None:
        """Return a connection, or None with the slot for a new one."""
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with WaitLimit(_TURN_SECONDS):
                return await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                # the turn came in the same moment as the time-out or cancellation
                self._return(waiter.result())
            if isinstance(error, TimeoutError):
                raise UpstreamBusy("Too many calls to the provider are under way.") from error
            raise

    async def _connect(self, seconds: float) -> Connection:
        try:
            async with WaitLimit(seconds):
                connection = await self._try_addresses(seconds)
        except TimeoutError as error:
            raise UpstreamUnreachable("The provider could not be reached in time.") from error
        except (OSError, ValueError) as error:
            raise UpstreamUnreachable("The provider could not be reached.") from error
        # before this, its end is not counted: the slot is still the caller's
        self._connections.add(connection)
        return connection

    async def _try_addresses(self, seconds: float) -> Connection:
        """Connect to the first address that answers. Raises OSError or ValueError."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        addresses = await self._resolve(loop)
        for left in range(len(addresses), 1, -1):
            # one that does not answer leaves the others their share of the time
            with suppress(OSError):
                async with asyncio.timeout((due - loop.time()) / left):
                    return await self._open_connection(loop, addresses[-left])
        return await self._open_connection(loop, addresses[-1])

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        """Return the permitted addresses of the host or its proxy, at least one."""
        host, port = self._host, self._port
        if self._proxy is not None:
            try:
                # in each form in which the proxy may read it
                self._policy.check_url_literal(f"//{self._authority}")
            except AddressRefused as error:
                raise EgressRefused from error
            host, port = self._proxy.host, self._proxy.port
        if _is_address(host):
            addresses = [host]
        else:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
            addresses = [str(entry[4][0]) for entry in found[:MOST_ADDRESSES]]
        permitted = [address for address in addresses if self._policy.permits(address)]
        if not permitted:
            raise EgressRefused
        return permitted

    async def _open_connection(self, loop: asyncio.AbstractEventLoop, address: str) -> Connection:
        # the event loop opens the socket itself, of an address: nothing is resolved after the check
        place: dict[str, Any] = {"host": address, "port": self._port}
        if self._proxy is not None:
            place["port"] = self._proxy.port
            if self._tls is not None:
                place = {"sock": await self._proxy.open_tunnel(address, self._host, self._port)}
        transport, connection = await loop.create_connection(
            lambda: Connection(loop, self._release, self._remove),
            **place,
            ssl=self._tls,
            server_hostname=None if self._tls is None else self._host,
        )
        if self._tls is not None:
            secure: Any = transport
            secure.set_read_buffer_limits(TLS_BYTES)
        if not connection.is_open:
            raise ConnectionResetError
        return connection

    def _release(self, connection: Connection) -> None:
        """Give a connection that has become free to the next call."""
        if self._closed:
            connection.close()
            return
        waiter = self._next_waiter()
        if waiter is not None:
            waiter.set_result(connection)
            return
        self._free.append(connection)
        if self._sweep is None:
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_later(self._idle_seconds, self._close_idle)

    def _remove(self, connection: Connection) -> None:
        """Free the slot of a connection that has ended."""
        if connection in self._connections:
            self._connections.remove(connection)
            with suppress(ValueError):
                self._free.remove(connection)
            self._give_slot()

    def _return(self, turn: Connection | None) -> None:
        """Give back what a call waited for and does not need."""
        if turn is None:
            self._give_slot()
        elif turn.is_open:
            self._release(turn)

    def _give_slot(self) -> None:
        """Let the next call open a connection."""
        waiter = self._next_waiter()
        if waiter is None:
            self._open -= 1
        else:
            waiter.set_result(None)

    def _next_waiter(self) -> asyncio.Future[Connection | None] | None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def _close_free(self) -> None:
        while self._free:
            self._free.pop().close()

    def _close_idle(self) -> None:
        """Close connections that nobody has used for long."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        while self._free:
            due = self._free[0].free_since + self._idle_seconds
            if due > loop.time():
                self._sweep = loop.call_at(due, self._close_idle)
                return
            self._free.popleft().close()


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Header lines. Raises ValueError for characters that HTTP does not allow in them."""
    lines = []
    for name, value in headers.items():
        line_name, line_value = name.encode(), value.encode()
        if not _NAME.fullmatch(line_name) or not _VALUE.fullmatch(line_value):
            raise ValueError("not a header")
        lines.append(b"%b: %b\r\n" % (line_name, line_value))
    return b"".join(lines)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@cache
def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
