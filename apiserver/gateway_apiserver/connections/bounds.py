"""Bounds of what one connection and all connections may use; set by a deployment (`settings`)."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network


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
