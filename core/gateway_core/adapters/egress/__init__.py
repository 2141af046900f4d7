"""Connections to addresses that others name, refused by the address that is really connected to.

Used by whatever fetches or posts to a URL of a client's or a provider's; their sessions also set
`trust_env=False` and follow no redirects.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway_core.domain.addresses import AddressPolicy, AddressRefused


class EgressRefused(OSError):
    """The policy refuses the address; the AddressRefused is its cause.

    aiohttp tells of it in a ClientConnectorError. The text is always the same: of a host's several
    addresses aiohttp passes the error on only where they agree.
    """

    def __init__(self) -> None:
        super().__init__("The address is not allowed.")


class PooledResolver(AbstractResolver):
    """Looks names up in threads of its own, `size` at once.

    The loop's few threads serve everybody; a name whose server never answers holds one for half a
    minute, and whoever names hosts could hold them all.
    """

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="lookup")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of `host`. OSError where there is none."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, _look_up, host, port, family
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=found_family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found_family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Lets go of the threads; those in a look-up end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int, family: int) -> Any:
    return socket.getaddrinfo(
        host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )


def guarded_connector(
    policy: AddressPolicy,
    limit: int,
    *,
    resolver: AbstractResolver | None = None,
    once: bool = False,
) -> aiohttp.TCPConnector:
    """A connector of at most `limit` connections that opens none to what `policy` refuses.

    The check is in the making of the socket, after DNS and before the connection, once for each
    address tried: a name that resolves differently the second time gains nothing. TLS still
    verifies the name. `once` keeps no connection for a second request. Call it with an event loop
    running.
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
        limit=limit, socket_factory=open_socket, resolver=resolver, force_close=once
    )
