"""Policy of redirect URIs: what may be registered, and what matches it (contract §10.5). Pure."""

import re
from urllib.parse import parse_qsl, urlsplit

from gateway_core.api.oauth import MOST_URI_CHARACTERS

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_PLAIN = re.compile(r"[!-~]+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,63}")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_IPV4 = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.|$)){4}")
MOST_HOST = 253
_EXECUTED = """
    about blob chrome chrome-extension chrome-untrusted cid data devtools edge feed file filesystem
    hcp jar javascript livescript mhtml mid mk mocha moz-extension ms-its opera pcast res resource
    safari-extension shell vbs vbscript view-source wyciwyg x-javascript
"""
"""Schemes that run code, or read what the browser or the machine has."""
_STARTING = """
    android-app calculator intent itms itms-apps itms-services jnlp market ms-access ms-appinstaller
    ms-excel ms-msdt ms-officecmd ms-powerpoint ms-search ms-settings ms-word onenote powershell
    search search-ms steam windowsdefender
"""
"""Schemes that start a program of the system with what the URI says."""
_FOREIGN = """
    callto dict dns facetime ftp ftps geo git gopher h323 imap irc ldap ldaps magnet mailto mms news
    nfs nntp pop rdp rtsp sftp sip sips sms smb smsto snews ssh svn tel telnet tftp tn3270 urn vnc
    webcal ws wss xmpp
"""
"""Schemes of the net, which belong to no application of the user."""
_FORBIDDEN = frozenset(f"{_EXECUTED} {_STARTING} {_FOREIGN}".split())
_ANSWERED = frozenset({"code", "error", "error_description", "error_uri", "iss", "state"})
"""Parameters of the response: a client may read the first of two that have one name."""


class RedirectRefused(ValueError):
    """The URI may not be registered; the text says why."""


def check_redirect_uri(uri: str) -> None:
    """Raise RedirectRefused unless `uri` may be registered.

    `https` with a host; `http` for loopback only; a private-use scheme of a native application.
    """
    if not uri or len(uri) > MOST_URI_CHARACTERS:
        raise RedirectRefused(f"must have 1 to {MOST_URI_CHARACTERS} characters")
    # browsers take a backslash for a slash, and remove control characters and spaces
    if not _PLAIN.fullmatch(uri) or "\\" in uri or any(mark in uri for mark in '<>"`{}|^'):
        raise RedirectRefused("has characters that no URI may have")
    if "#" in uri:
        raise RedirectRefused("may not have a fragment")
    if any(name in _ANSWERED for name, _ in parse_qsl(uri.partition("?")[2], True)):
        raise RedirectRefused("has a parameter of the authorization response")
    scheme, colon, rest = uri.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme) or scheme in _FORBIDDEN:
        raise RedirectRefused("has a scheme that is not allowed")
    if scheme in ("http", "https"):
        _check_host(uri, is_loopback_only=scheme == "http")
    elif not rest.strip("/"):
        raise RedirectRefused("names no place")


def is_redirect_uri(uri: str) -> bool:
    """Return whether `uri` may be registered."""
    try:
        check_redirect_uri(uri)
    except RedirectRefused:
        return False
    return True


def _check_host(uri: str, *, is_loopback_only: bool) -> None:
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise RedirectRefused("has no valid host") from None
    if not host or "@" in parts.netloc or not uri.startswith(f"{parts.scheme}://"):
        raise RedirectRefused("has no valid host")
    if is_loopback_only and host not in LOOPBACK_HOSTS:
        raise RedirectRefused(
            "must use https, except on this machine (localhost, 127.0.0.1, [::1])"
        )
    if parts.netloc.startswith("["):
        if host not in LOOPBACK_HOSTS:
            raise RedirectRefused("has no valid host")
    elif not _is_host(host):
        raise RedirectRefused("has no valid host")


def _is_host(host: str) -> bool:
    labels = host.split(".")
    if len(host) > MOST_HOST or not all(map(_LABEL.fullmatch, labels)):
        return False
    # browsers read `127.1` and `0x7f000001` as addresses
    return not _NUMBER.fullmatch(labels[-1]) or bool(_IPV4.fullmatch(host))


def matches(registered: str, given: str) -> bool:
    """Return whether `given` is `registered`, character by character; loopback ports may differ."""
    if registered == given:
        return True
    wanted, found = _split_loopback(registered), _split_loopback(given)
    return wanted is not None and wanted == found


def _split_loopback(uri: str) -> tuple[str, str] | None:
    """Host and rest of an `http` URI of loopback, without the port; None for any other."""
    if not is_redirect_uri(uri):
        return None
    parts = urlsplit(uri)
    if parts.scheme != "http" or not parts.hostname:
        return None
    return parts.hostname, uri.removeprefix(f"http://{parts.netloc}")


def name_host(uri: str) -> str:
    """Where a user is sent back to, for people: the host, or `scheme:` of an application."""
    parts = urlsplit(uri)
    return parts.netloc if parts.scheme in ("http", "https") else f"{parts.scheme}:"


def is_loopback(uri: str) -> bool:
    """Return whether the URI leads to the user's own machine, where any program may listen."""
    parts = urlsplit(uri)
    host = parts.hostname or ""
    is_local = host in LOOPBACK_HOSTS or host.startswith("127.") or host in ("0.0.0.0", "::")  # noqa: S104
    return parts.scheme in ("http", "https") and (is_local or host.endswith(".localhost"))


def is_site(uri: str) -> bool:
    """Return whether the URI leads to a site that TLS identifies, not to the user's own machine."""
    return uri.startswith("https://") and not is_loopback(uri)
