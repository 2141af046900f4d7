"""Listening sockets of several processes on one port; the kernel spreads connections over them.

With a socket for each process (`SO_REUSEPORT`) instead of an inherited one, 16 connections that a
client opens at once are spread 10 to 6 in the median, not 16 to 0: the first process to wake up
accepts all that wait in a queue.
"""

import socket

_BACKLOG = 2048


def reserve_port(host: str, port: int) -> list[socket.socket]:
    """Sockets that keep the port for workers and accept nothing.

    Raises:
        OSError: the address is in use, or cannot be used.
    """
    # sockets that share a port do not see those of another gateway
    for probe in _bind(host, port, shared=False):
        probe.close()
    return _bind(host, port, shared=True)


def listen_shared(host: str, port: int) -> list[socket.socket]:
    """Sockets that accept a share of the connections. OSError as for `reserve_port`."""
    sockets = _bind(host, port, shared=True)
    for each in sockets:
        each.listen(_BACKLOG)
    return sockets


def _bind(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """One socket for each address of the host, bound as asyncio binds them.

    An empty host is every address of both families, as far as the kernel has them.
    """
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            absent = error
            continue
        sockets.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    if absent is not None and not sockets:
        raise absent
    return sockets
