"""Origin, Host and Accept of a request, and CORS, all before authentication (contract §10.2). Pure.

A page that a browser was tricked into (DNS rebinding) sends its own host name, so names of loopback
need not be listed: no such page has one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from gateway_mcpserver.protocol.messages import INVALID_REQUEST, RpcError
from gateway_web.context import Header

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORTS = {"http": "80", "https": "443"}
_ALLOWED_HEADERS = (
    b"Authorization, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name,"
    b" Mcp-Session-Id, Last-Event-ID"
)
_EXPOSED_HEADERS = b"WWW-Authenticate, X-Request-Id"
_OWS = " \t"
_REFUSED = re.compile(r"q[ \t]*=[ \t]*0(\.0*)?")
"""A weight that means `not acceptable`."""
_VARY = (b"vary", b"Origin")


class AddressRules:
    """The origins and hosts that are served: bare origins, and `host` or `host:port`."""

    def __init__(
        self, mcp_url: str, base_url: str, origins: Iterable[str] = (), hosts: Iterable[str] = ()
    ) -> None:
        self._origins = frozenset({mcp_url, base_url, *origins})
        allowed = {host.lower() for host in hosts}
        parts = urlsplit(mcp_url)
        allowed.add(parts.netloc)
        if parts.port is None:
            allowed.add(f"{parts.netloc}:{_PORTS[parts.scheme]}")
        self._hosts = frozenset(allowed)

    def check_host(self, headers: Iterable[Header]) -> None:
        """Raise RpcError 421 unless the one Host is served."""
        given = [value for name, value in headers if name == b"host"]
        host = given[0].decode("latin-1").strip(_OWS).lower() if len(given) == 1 else ""
        if host not in self._hosts and _strip_port(host) not in _LOOPBACK:
            raise RpcError(INVALID_REQUEST, "This host is not served here.", status=421)

    def check_origin(self, headers: Iterable[Header]) -> str | None:
        """Return the allowed origin of a page, None where none is named. RpcError 403."""
        given = [
            value.decode("latin-1").strip(_OWS) for name, value in headers if name == b"origin"
        ]
        if not given:
            return None
        if len(given) > 1 or not (given[0] in self._origins or _is_loopback(given[0])):
            raise RpcError(INVALID_REQUEST, "The origin is not allowed.", status=403)
        return given[0]


def list_cors_headers(origin: str) -> Sequence[Header]:
    """Return the headers that a page of an allowed origin needs on every response."""
    allow = (b"access-control-allow-origin", origin.encode("latin-1"))
    return allow, (b"access-control-expose-headers", _EXPOSED_HEADERS), _VARY


PREFLIGHT_HEADERS: Sequence[Header] = (
    (b"access-control-allow-methods", b"POST, OPTIONS"),
    (b"access-control-allow-headers", _ALLOWED_HEADERS),
    (b"access-control-max-age", b"600"),
)


def read_accept(headers: Iterable[Header]) -> tuple[bool, bool]:
    """Return whether the client takes JSON, and whether it takes event streams (RFC 9110 §12.5.1).

    The most specific range that names a type decides; a request that names none takes both.
    """
    given = [value.decode("latin-1") for name, value in headers if name == b"accept"]
    ranges = dict[str, bool]()
    for part in ",".join(given).split(","):
        name, *parameters = (word.strip(_OWS).lower() for word in part.split(";"))
        if name:
            is_taken = not any(_REFUSED.fullmatch(word) for word in parameters)
            ranges[name] = ranges.get(name, False) or is_taken
    return _takes(ranges, "application/json"), _takes(ranges, "text/event-stream")


def _takes(ranges: Mapping[str, bool], media_type: str) -> bool:
    group = media_type.partition("/")[0]
    named = [name for name in (media_type, f"{group}/*", "*/*") if name in ranges]
    return ranges[named[0]] if named else not ranges


def _strip_port(host: str) -> str:
    head, colon, port = host.rpartition(":")
    return head if colon and port.isdigit() else host


def _is_loopback(origin: str) -> bool:
    scheme, mark, host = origin.partition("://")
    return bool(mark) and scheme in _PORTS and _strip_port(host) in _LOOPBACK
