"""Tunnels through the forward proxy that the environment names (RFC 9110 §9.3.6)."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway_core.proxies import find_proxy, split_credentials

MOST_HEAD_BYTES = 8 * 1024
"""Bytes of a proxy's response to CONNECT."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An http proxy; `headers` are its credentials."""

    host: str
    port: int
    headers: Mapping[str, str]

    async def open_tunnel(self, address: str, host: str, port: int) -> socket.socket:
        """A socket to `host` through the proxy at `address`.

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
            _check_head(await _read_head(loop, tunnel))
        except BaseException:
            tunnel.close()
            raise
        return tunnel

    def _ask(self, host: str, port: int) -> bytes:
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"{name}: {value}" for name, value in {"Host": authority, **self.headers}.items()]
        return "\r\n".join([f"CONNECT {authority} HTTP/1.1", *lines, "", ""]).encode()


def find_route(url: str) -> Proxy | None:
    """The proxy for an upstream, None where it is reached directly.

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


async def _read_head(loop: asyncio.AbstractEventLoop, tunnel: socket.socket) -> bytes:
    """The proxy's response; bytes after it are no part of a tunnel in which TLS has not begun."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = await loop.sock_recv(tunnel, MOST_HEAD_BYTES)
        head += piece
        if not piece or len(head) > MOST_HEAD_BYTES:
            raise ConnectionResetError("the proxy's answer cannot be read")
        if b"\r\n" in head and not head.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2")):
            # a refusal may have a body
            break
    return head


def _check_head(head: bytes) -> None:
    version, _, rest = head.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest.startswith(b"2"):
        raise ConnectionRefusedError("the proxy refuses")
