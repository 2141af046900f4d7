"""Open connections of one port, bounded in total and per address, and clients behind proxies.

A connection without a request under way is *waiting*: new, idle, or with an incomplete head. At a
bound the longest waiting connection is closed for a new one, so connections that send nothing keep
no client out. Next the oldest whose request is not authenticated and whose body has not arrived.
Only if there is none, the new connection is refused.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import chain
from typing import Protocol

from starlette.types import Scope

from gateway_core.api.errors import Unavailable
from gateway_web.context import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Bounds of one listening port. Times are seconds."""

    connections: int = 2000
    per_address: int = 1000
    """Connections of one peer, or requests at once of one client behind a trusted proxy."""
    refusals: int = 128
    """Connections beyond these bounds that are kept open until they can be answered with 503."""
    refusal_seconds: float = 2.0
    """How long such a connection waits for its first request."""
    headers: int = 100
    head_bytes: int = 32 * 1024
    head_seconds: float = 10.0
    """From the first byte of a head to its end."""
    piece_bytes: int = 16 * 1024
    """What is parsed at once: of a head that is too large, no more is kept beyond its bound."""
    pipelined: int = 8
    """Requests that wait for the response to one before them."""
    unread_bytes: int = 64 * 1024
    """Of a body that the application does not read: beyond it the connection is not read either."""
    drained_bytes: int = 4 * 1024 * 1024
    """Of a body that was answered before its end: read on, as a client that is still sending may
    not see the answer otherwise, and then no further."""
    drain_seconds: float = 10.0
    """How long the rest of such a body may take."""
    idle_seconds: float = 60.0
    """Without a request: after the connect or after a response."""
    send_buffer_bytes: int = 64 * 1024
    """Of the kernel, which would take megabytes of a slow reader's response. It counts twice as
    much for its own records."""
    stall_seconds: float = 60.0
    """A client that takes none of the bytes that are ready for it is cut off after this time."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()

    def fit(self, target: bytes, headers: Sequence[Header]) -> bool:
        """Return whether a head is within the bounds; each header counts four bytes more."""
        size = len(target) + sum(map(len, chain.from_iterable(headers))) + 4 * len(headers)
        return size <= self.head_bytes and len(headers) <= self.headers


_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*"?([^";]*)"?', re.IGNORECASE)
_SITE_PREFIX = 64
"""Limits count an IPv6 /64 as one client, since a client usually has a whole one."""

_SUBSCRIBER_PREFIX = 48


class Proxies:
    """The networks of trusted proxies; none by default."""

    def __init__(self, networks: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self._networks = tuple(networks)

    def trusts(self, host: str) -> bool:
        """Return whether a connection from this address comes from a trusted proxy."""
        if not self._networks:
            return False
        address = _parse(host)
        return address is not None and self._contains(address)

    def find_client(self, headers: Iterable[Header]) -> str | None:
        """Return the client that a trusted proxy names; None where it names none that can be read.

        `X-Forwarded-For` goes before `Forwarded`.
        """
        listed: list[str] = []
        forwarded: list[str] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                listed += value.decode("latin-1").split(",")
            elif name == b"forwarded":
                elements = value.decode("latin-1").split(",")
                forwarded += [m[1] if (m := _FOR.search(element)) else "" for element in elements]
        found = None
        for text in reversed(listed or forwarded):
            address = _parse(_strip_port(text.strip()))
            if address is None:
                break
            found = str(address)
            if not self._contains(address):
                break
        return found

    def _contains(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def name_holder(host: str) -> str:
    """Return the holder of an address's limits: the address, of IPv6 its /64."""
    if ":" not in host:
        return host
    address = _parse(host)
    if not isinstance(address, IPv6Address):
        return host if address is None else str(address)
    return str(ip_network((address, _SITE_PREFIX), strict=False))


def name_network(scope: Scope) -> str | None:
    """Return the /48 of a request's IPv6 client, which one subscriber may have; None for others."""
    client = scope.get("client")
    address = _parse(client[0]) if client and ":" in client[0] else None
    if not isinstance(address, IPv6Address):
        return None
    return str(ip_network((address, _SUBSCRIBER_PREFIX), strict=False))


def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _strip_port(text: str) -> str:
    """`[2001:db8::1]:80` and `192.0.2.1:80` without their ports."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.partition(":")
    return host if colon and ":" not in port else text


class ProxiedClients:
    """Requests that are under way, by client."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._proxies = Proxies(bounds.trusted_proxies)
        self._most = bounds.per_address
        self._requests: Counter[str] = Counter()

    def begin(self, scope: Scope) -> str | None:
        """Count a request, to be ended with `end`, of a client that a proxy names; else None.

        `scope["client"]` is the client from here on. Unavailable.
        """
        client = scope.get("client")
        found = None
        if client is not None and self._proxies.trusts(client[0]):
            found = self._proxies.find_client(scope["headers"])
        if found is None:
            return None
        scope["client"] = (found, 0)
        holder = name_holder(found)
        if self._requests[holder] >= self._most:
            raise Unavailable("Too many requests at once.")
        self._requests[holder] += 1
        return holder

    def end(self, holder: str) -> None:
        """End the count of a request."""
        self._requests[holder] -= 1
        if not self._requests[holder]:
            del self._requests[holder]


def name_client(scope: Scope) -> str:
    """Return the holder of the limits of this request's client."""
    client = scope.get("client")
    return name_holder(client[0]) if client else ""


class Connection(Protocol):
    """A connection, as the table uses it."""

    def is_authenticated(self) -> bool:
        """Return whether the caller of the latest request is known."""
        ...

    @property
    def account(self) -> str | None:
        """The account of the latest request, where it is known and not answered yet."""
        ...

    def evict(self) -> None:
        """Closes the connection."""
        ...


class _Peer:
    __slots__ = ("open", "receiving", "trusted", "waiting")

    def __init__(self, *, trusted: bool) -> None:
        self.open = 0
        self.trusted = trusted
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        self.receiving: OrderedDict[Connection, None] = OrderedDict()
        """Those whose request's body has not arrived."""


class ConnectionTable:
    """The connections of one port; `evicted` and `refused` count connections beyond the bounds."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._proxies = Proxies(bounds.trusted_proxies)
        self._peers: dict[str, _Peer] = {}
        self._owners: dict[Connection, str] = {}
        self.evicted = 0
        self.refused = 0
        self.pending_refusals = 0
        """Refused connections that are still open, to be answered with 503."""

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def bounds(self) -> ConnectionBounds:
        """The bounds of this port."""
        return self._bounds

    def admit(self, connection: Connection, host: str) -> bool:
        """Admit a new connection as waiting; False if it must be refused."""
        name = name_holder(host)
        peer = self._peers.get(name)
        if peer is None:
            peer = _Peer(trusted=self._proxies.trusts(host))
        if not peer.trusted and peer.open >= self._bounds.per_address:
            room = self._evict_from(peer)
        elif len(self._owners) >= self._bounds.connections:
            room = self._evict_from_largest()
        else:
            room = True
        if not room:
            self.refused += 1
            return False
        # the eviction may have ended this peer's last connection
        peer = self._peers.setdefault(name, peer)
        peer.open += 1
        peer.waiting[connection] = None
        self._owners[connection] = name
        return True

    def set_receiving(self, connection: Connection) -> None:
        """A request has begun on it, whose body has not arrived."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].waiting.pop(connection, None)
            self._peers[name].receiving[connection] = None

    def set_busy(self, connection: Connection) -> None:
        """The request's body has arrived."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].receiving.pop(connection, None)

    def set_waiting(self, connection: Connection) -> None:
        """Its last request has ended."""
        name = self._owners.get(connection)
        if name is not None:
            self._peers[name].receiving.pop(connection, None)
            self._peers[name].waiting[connection] = None

    def remove(self, connection: Connection) -> None:
        """It has ended. Nothing happens where it is not in the table."""
        name = self._owners.pop(connection, None)
        if name is None:
            return
        peer = self._peers[name]
        peer.waiting.pop(connection, None)
        peer.receiving.pop(connection, None)
        peer.open -= 1
        if not peer.open:
            del self._peers[name]

    def _evict_from(self, peer: _Peer) -> bool:
        oldest = next(iter(peer.waiting), None) or next(
            (each for each in peer.receiving if not each.is_authenticated()), None
        )
        if oldest is None:
            return False
        self._evict(oldest)
        return True

    def _evict(self, connection: Connection) -> None:
        self.remove(connection)
        self.evicted += 1
        connection.evict()

    def _evict_from_largest(self) -> bool:
        """Evict from the address with the most connections that has one to evict."""
        waiting = [peer for peer in self._peers.values() if peer.waiting]
        receiving = (peer for peer in self._peers.values() if peer.receiving)
        candidates = waiting or receiving
        by_size = sorted(candidates, key=lambda peer: -peer.open)
        return any(map(self._evict_from, by_size)) or self._evict_from_account()

    def _evict_from_account(self) -> bool:
        """Evict from the account whose bodies are on their way on more than a quarter of all."""
        receiving = [each for peer in self._peers.values() for each in peer.receiving]
        by_account = Counter(each.account for each in receiving if each.account is not None)
        for account, number in by_account.most_common(1):
            if number > self._bounds.connections // 4:
                self._evict(next(each for each in receiving if each.account == account))
                return True
        return False
