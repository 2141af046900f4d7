"""Choice of the forward proxy for a URL, from the environment (golang.org/x/net/http/httpproxy).

kubectl and most programs of Kubernetes follow the same rules, which know networks in NO_PROXY.
"""

import base64
import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


class InvalidProxy(ValueError):
    """The value names no http or https proxy; the text omits it, since it may hold a password."""


def find_proxy(url: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the URL of the proxy for requests to `url`, None where they go directly.

    `HTTPS_PROXY` applies to https URLs and `HTTP_PROXY` to http ones; `NO_PROXY` lists exceptions:
    names with their subdomains, `.name` for subdomains alone, addresses and networks, each with an
    optional port, or `*` for all. The upper-case variable precedes its lower-case form. Loopback
    addresses always go directly.

    Raises:
        InvalidProxy: the variable that applies has no usable value.
    """
    environment = os.environ if environment is None else environment
    target = urlsplit(url)
    name = f"{target.scheme.upper()}_PROXY"
    proxy = _read(environment, name)
    if not proxy or not _uses_proxy(target, _read(environment, "NO_PROXY")):
        return None
    try:
        return parse_proxy(proxy)
    except InvalidProxy as error:
        raise InvalidProxy(f"{name} {error}") from None


def parse_proxy(text: str) -> str:
    """Return the proxy's URL; `host:port` alone is an http proxy. Raises InvalidProxy."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise InvalidProxy("is not a URL") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise InvalidProxy(f"has the scheme {parts.scheme}: only http and https are supported")
    if parts.query or parts.fragment:
        # of a password that is not percent-encoded: what precedes it would pass for the host
        raise InvalidProxy("has ? or #: percent-encode the user and the password")
    if not is_usable:
        raise InvalidProxy("names no host")
    return url


def split_credentials(proxy: str) -> tuple[str, dict[str, str]]:
    """Return the proxy's URL without its user and password, and the header that carries these.

    Errors and logs show the URL of a proxy.
    """
    parts = urlsplit(proxy)
    user, at, address = parts.netloc.rpartition("@")
    if not at:
        return proxy, {}
    encoded = base64.b64encode(unquote_to_bytes(user if ":" in user else f"{user}:"))
    headers = {"Proxy-Authorization": f"Basic {encoded.decode()}"}
    return parts._replace(netloc=address).geturl(), headers


def _read(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name) or environment.get(name.lower()) or "").strip()


def _uses_proxy(target: SplitResult, exceptions: str) -> bool:
    host = (target.hostname or "").removesuffix(".")
    port = target.port or _DEFAULT_PORTS.get(target.scheme, 0)
    if not host or host == "localhost":
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return not any(_covers_name(entry, host, port) for entry in _split(exceptions))
    if address.is_loopback:
        return False
    return not any(_covers_address(entry, str(address), port) for entry in _split(exceptions))


def _split(exceptions: str) -> list[str]:
    return [entry for part in exceptions.split(",") if (entry := part.strip().lower())]


def _covers_name(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    name, colon, entry_port = entry.partition(":")
    if colon and entry_port != str(port):
        return False
    name = (name[1:] if name.startswith("*.") else name).removesuffix(".")
    return host.endswith(name) if name.startswith(".") else f".{host}".endswith(f".{name}")


def _covers_address(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    address = ip_address(host)
    if "/" in entry:
        try:
            return address in ip_network(entry, strict=False)
        except ValueError:
            return False
    try:
        # a bare IPv6 address has colons but no port
        return address == ip_address(entry.strip("[]"))
    except ValueError:
        pass
    name, _, entry_port = entry.rpartition(":")
    try:
        return address == ip_address(name.strip("[]")) and entry_port == str(port)
    except ValueError:
        return False
