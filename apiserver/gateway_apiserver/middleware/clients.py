"""Bounds of client connections, and the client's address behind trusted proxies."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

from gateway_apiserver.context import Header
from gateway_core.api.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Bounds of one listening port. Times are seconds."""

    connections: int = 2000
    per_address: int = 1000
    """Connections of one peer, or requests at once of one client behind a trusted proxy."""
    headers: int = 100
    head_bytes: int = 32 * 1024
    head_seconds: float = 10.0
    """From the first byte of a head to its end."""
    idle_seconds: float = 60.0
    """Without a request: after the connect or after a response."""
    stall_seconds: float = 60.0
    """A client that takes none of the bytes that are ready for it is cut off after this time."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()


_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*"?([^";]*)"?', re.IGNORECASE)
_SITE_PREFIX = 64
"""A client of IPv6 usually has a whole /64, so this prefix stands for it."""


class Proxies:
    """The networks of trusted proxies; none by default."""

    def __init__(self, networks: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        self._networks = tuple(networks)

    def trusts(self, host: str) -> bool:
        """Whether a connection from this address comes from a trusted proxy."""
        if not self._networks:
            return False
        address = _parse(host)
        return address is not None and self._contains(address)

    def find_client(self, headers: Iterable[Header]) -> str | None:
        """The client that a trusted proxy names; None where it names none that can be read.

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
    """What the limits of an address are kept under: the address, of IPv6 its /64."""
    if ":" not in host:
        return host
    address = _parse(host)
    if not isinstance(address, IPv6Address):
        return host if address is None else str(address)
    return str(ip_network((address, _SITE_PREFIX), strict=False))


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

    @contextmanager
    def enter(self, scope: Scope) -> Iterator[None]:
        """Goes around a request. `scope["client"]` is the client from here on. Unavailable."""
        client = scope.get("client")
        found = None
        if client is not None and self._proxies.trusts(client[0]):
            found = self._proxies.find_client(scope["headers"])
        if found is None:
            yield
            return
        scope["client"] = (found, 0)
        holder = name_holder(found)
        if self._requests[holder] >= self._most:
            raise Unavailable("Too many requests at once.")
        self._requests[holder] += 1
        try:
            yield
        finally:
            self._requests[holder] -= 1
            if not self._requests[holder]:
                del self._requests[holder]


def name_client(scope: Scope) -> str:
    """What the limits of this request's client are kept under."""
    client = scope.get("client")
    return name_holder(client[0]) if client else ""
