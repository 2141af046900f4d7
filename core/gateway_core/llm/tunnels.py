"""Tunnels through the forward proxy that the environment names (RFC 9110 §9.3.6)."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway_core.proxies import find_proxy, split_credentials

MAX_HEAD_BYTES = 8 * 1024
"""Size of a proxy's response to CONNECT."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An http proxy; `headers` are its credentials."""

    host: str
    port: int
    headers: Mapping[str, str]

    async def open_tunnel(self, address: str, host: str, port: int) -> socket.socket:
        """Return a socket to `host` through the proxy at `address`.

        Raises:
            OSError: the proxy was not reached, or refuses.
        """
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        tunnel = socket.socket(family, socket.SOCK_STREAM)
        try:
            tunnel.setblocking(False)
            await loop.sock_connect(tunnel, (address, self.port))
            await loop.sock_sendall(tunnel, self._ask(host, port))
            await _await_acceptance(loop, tunnel)
        except BaseException:
            tunnel.close()
            raise
        return tunnel

    def _ask(self, host: str, port: int) -> bytes:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"{name}: {value}" for name, value in {"Host": authority, **self.headers}.items()]
        return "\r\n".join([f"CONNECT {authority} HTTP/1.1", *lines, "", ""]).encode()


def find_route(url: str) -> Proxy | None:
    """Return the proxy for an upstream, None where it is reached directly.

    Raises:
        ValueError: the environment names no proxy that speaks plain http.
    """
    found = find_proxy(url)
    if found is None:
        return None
    address, headers = split_credentials(found)
    parts = urlsplit(address)
    if parts.scheme != "http":
        raise ValueError("a proxy for language models must be an http URL")
    return Proxy(parts.hostname or "", parts.port or 80, headers)


async def _await_acceptance(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> None:
    """Read the proxy's response, behind which nothing may come before TLS begins."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = await loop.sock_recv(tunnel, MAX_HEAD_BYTES)
        head += piece
        if not piece or len(head) > MAX_HEAD_BYTES:
            raise ConnectionResetError("the proxy's response cannot be read")
        if b"\r\n" in head and not head.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")):
            raise ConnectionRefusedError("the proxy refuses")
