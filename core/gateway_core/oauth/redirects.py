"""Policy of redirect URIs: what may be registered, and what matches it (contract §10.5). Pure."""

import re
from urllib.parse import urlsplit

from gateway_core.api.oauth import MOST_URI_CHARACTERS

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_PLAIN = re.compile(r"[!-~]+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,63}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_FORBIDDEN = frozenset(
    {
        "about",
        "blob",
        "data",
        "file",
        "filesystem",
        "ftp",
        "jar",
        "javascript",
        "mailto",
        "vbscript",
        "view-source",
        "ws",
        "wss",
    }
)
"""Schemes that run code, read local files, or belong to no application of the user."""


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
    scheme, colon, rest = uri.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme) or scheme in _FORBIDDEN:
        raise RedirectRefused("has a scheme that is not allowed")
    if scheme in ("http", "https"):
        _check_host(uri, is_loopback_only=scheme == "http")
    elif not rest.strip("/"):
        raise RedirectRefused("names no place")


def is_redirect_uri(uri: str) -> bool:
    """Whether `uri` may be registered."""
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
    elif not _HOST.fullmatch(host) or ".." in host:
        raise RedirectRefused("has no valid host")


def matches(registered: str, given: str) -> bool:
    """Whether `given` is `registered`: character by character, but for the port of loopback."""
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
    """Whether the URI leads to the user's own machine, where any program may listen."""
    return urlsplit(uri).scheme == "http"


def is_https(uri: str) -> bool:
    """Whether the URI leads to a site that TLS identifies."""
    return uri.startswith("https://")


def list_form_targets(uri: str) -> str:
    """The CSP source that lets a form's answer redirect to `uri`."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or parts.netloc.startswith("["):
        # CSP has no form for IPv6 literals
        return f"{parts.scheme}:"
    return f"{parts.scheme}://{parts.netloc}"
