"""The client's address: the connection's peer, or what a trusted proxy says of it.

A header that any client could send decides nothing: `X-Forwarded-For` and `Forwarded` are read only
where the connection comes from a trusted network, and from the right, up to the first address that
is no trusted proxy's.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from gateway_apiserver.trace import Header

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
