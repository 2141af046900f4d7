"""Connections to addresses that others name, refused by the address that is really connected to.

Used by whatever fetches or posts to a URL of a client's or a provider's; their sessions also set
`trust_env=False` and follow no redirects.
"""

import socket
import ssl
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from gateway_core.domain.addresses import AddressPolicy, AddressRefused


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
