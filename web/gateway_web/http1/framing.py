"""Rules of HTTP/1.1 messages that llhttp leaves to its user (RFC 9112).

If a proxy with shared connections sees the end of a request elsewhere than this server, its sender
can write the next request of another client. So requests are refused that a proxy may read
differently.
"""

from collections.abc import Mapping, Sequence

import httptools

from gateway_web.context import Header

_HOST_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~%!$&'()*+,;=:[]"
"""Characters of a host and its port (RFC 3986, 3.2.2)."""
_SINGLE = (b"host", b"transfer-encoding")
"""Headers that a request has once; llhttp refuses a second length."""


class Refused(Exception):
    """Refusal of a request before the application sees it; the connection closes."""

    def __init__(self, status: int = 400, text: str = "The request is not valid HTTP.") -> None:
        super().__init__(text)
        self.status = status


def check_head(
    method: bytes, version: str, headers: Sequence[Header], values: Mapping[bytes, bytes]
) -> None:
    """Raise Refused for a request whose end a proxy may see elsewhere.

    `values` has the last value of each header.
    """
    if version not in ("1.1", "1.0"):
        raise Refused(505, "The HTTP version is not supported.")
    if method == b"CONNECT":
        # the bytes behind it belong to another protocol
        raise Refused(501, "The method is not supported.")
    if len(values) != len(headers):
        names = [name for name, _ in headers]
        if any(names.count(name) > 1 for name in _SINGLE):
            raise Refused
    coding = values.get(b"transfer-encoding")
    if coding is not None:
        # with a tab behind it, it is another coding for the parser
        _check_coding(coding.lower(), version)
    host = values.get(b"host")
    if host is None:
        if version == "1.1":
            raise Refused
    elif host.strip(b" \t").translate(None, _HOST_BYTES):
        raise Refused


def _check_coding(coding: bytes, version: str) -> None:
    if coding == b"chunked" and version == "1.1":
        return
    if coding.rpartition(b",")[2].lstrip(b" \t") == b"chunked" and version == "1.1":
        raise Refused(501, "The transfer coding is not supported.")
    raise Refused


def read_target(method: bytes, target: bytes, headers: list[Header]) -> tuple[bytes, bytes]:
    """Return path and query of a request's target; the host of an absolute one replaces `Host`.

    Raise Refused for a target that names no resource of this server (RFC 9112, 3.2).
    """
    url = httptools.parse_url(target)
    path, query = url.path or b"/", url.query or b""
    if path[:1] != b"/" and (path, method) != (b"*", b"OPTIONS"):
        raise Refused
    if url.schema is not None:
        if url.schema.lower() not in (b"http", b"https") or url.userinfo is not None:
            raise Refused
        authority = target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        headers[:] = [header for header in headers if header[0] != b"host"]
        headers.append((b"host", authority))
    return path, query


def write_without_upgrade(
    method: bytes, target: bytes, version: str, headers: Sequence[Header]
) -> bytes:
    """Return a head without its Upgrade, which a server may ignore (RFC 9110, 7.8)."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    return b"".join([*lines, b"\r\n"])
